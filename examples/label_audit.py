"""The label model and cleanlab side by side, on every source, kind of noise, rate and seed; the tables of docs/label_model.md.

    python examples/label_audit.py data/office31_resnet50 data/transfer_mobilenetv2      measure what is not in the records
    python examples/label_audit.py data/office31_resnet50 data/transfer_mobilenetv2 --again     anew, cleanlab's part stays
    python examples/label_audit.py data/office31_resnet50 --class-conditional            the second table
    python examples/label_audit.py data/office31_resnet50 --open-set                     images of no class
    python examples/label_audit.py --table                                               write the page from the records

cleanlab (pip install tllib_ext[compare]) gets out-of-sample probabilities as its tutorials make them: five-fold logistic
regression on unit-length features, here their 128 principal components. Records: docs/results/labels/SOURCE.json.
"""

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from tllib_ext import LabelSplit, NoisyLabels, UniversalView, estimate_labels, find_label_issues
from tllib_ext.io import write_between_marks, write_json
from tllib_ext.labels.audit import detection_quality
from tllib_ext.labels.issues import KINDS
from tllib_ext.split import PRESETS
from tllib_ext.vision.datasets.imagelist import FeatureList
from tllib_ext.vision.datasets.labels_file import GivenLabels

DOCS = Path(__file__).resolve().parents[1] / "docs"
RECORDS, PAGE = DOCS / "results" / "labels", DOCS / "label_model.md"
CONDITIONAL, OPEN_SET, HARD, RANDOM = "class_conditional.json", "open_set.json", "hard_inputs.json", "random_inputs.json"
SOURCES = ("amazon", "webcam", "dslr", "cifar", "caltech")
NOISES = ("pair", "symmetric", "random_partner", "runner_up", "pmd1", "part_dependent")
HUMAN = ("aggre", "random1", "worse")
Record = Dict[str, Any]


def cleanlab(features: np.ndarray, given: np.ndarray, clean: np.ndarray) -> Record:
    """What cleanlab finds with five-fold logistic regression."""
    import warnings

    from cleanlab.count import compute_confident_joint
    from cleanlab.filter import find_label_issues as flag
    from cleanlab.rank import get_label_quality_scores
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    start = time.process_time()
    x = PCA(128, random_state=0).fit_transform(features / np.linalg.norm(features, axis=1, keepdims=True))
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # classes of fewer than five samples, unconverged fits
        p = cross_val_predict(LogisticRegression(C=10, max_iter=200), x, given, cv=folds, method="predict_proba")
        joint, flagged = compute_confident_joint(given, p), flag(given, p)
    corrected = np.where(flagged, p.argmax(1), given)
    quality = detection_quality(-get_label_quality_scores(given, p), given != clean)
    return {**quality, "rate": 1 - np.trace(joint) / joint.sum(), "after": float((corrected == clean).mean()),
            "seconds": time.process_time() - start}  # fmt: skip


def ours(features: np.ndarray, given: np.ndarray, clean: np.ndarray, seed: int) -> Record:
    """What the audit finds."""
    start = time.process_time()
    found = find_label_issues(features, given, seed)
    low, high = found.model.rate_interval
    return {**detection_quality(found.suspicion, given != clean), "rate": found.model.rate, "low": low, "high": high,
            "known": found.model.rate_known, "after": float((found.corrected == clean).mean()),
            "structure": found.model.structure, "start": found.model.start,
            "seconds": time.process_time() - start}  # fmt: skip


def measure(source: str, file: Path, again: bool = False) -> None:
    """Add the cells of one source that are not in its records yet; ``again``: measure the label model of all of them."""
    stored = RECORDS / f"{source}.json"
    records: List[Record] = json.loads(stored.read_text()) if stored.exists() else []
    done = {(r["noise"], r["rate"], r["seed"]): r for r in records}
    dataset = FeatureList(file)
    split = PRESETS["Office31"] if source in SOURCES[:3] else LabelSplit(tuple(dataset.classes))
    view = UniversalView(dataset, split, "source")
    cells = [("none", 0.0, 0)] if source != "cifar" else [("none", 0.0, 0), *((f"human {column}", 0.0, 0) for column in HUMAN)]
    cells += [(noise, rate, seed) for seed in range(3) for rate in (0.2, 0.4) for noise in NOISES]
    for noise, rate, seed in cells:
        record = done.get((noise, rate, seed))
        if record and not again:
            continue
        if noise.startswith("human"):
            noisy: NoisyLabels = GivenLabels(view, file.with_name("cifar_human_labels.csv"), noise.split()[1])
        else:
            noisy = NoisyLabels(view, noise, rate, seed)
        x, given, clean = np.asarray(view.features), noisy.targets, noisy.clean_targets
        wrong = float((given != clean).mean())
        if record is None or record["wrong"] != wrong:  # else cleanlab's part holds: it does not depend on this package
            records = [r for r in records if r is not record]
            record = {"source": source, "noise": noise, "rate": rate, "seed": seed, "wrong": wrong,
                      "cleanlab": cleanlab(x, given, clean)}  # fmt: skip
            records.append(record)
        record["ours"] = ours(x, given, clean, 0)
        RECORDS.mkdir(parents=True, exist_ok=True)
        write_json(stored, records)
        print(source, noise, rate, seed, {k: v for k, v in record["ours"].items() if isinstance(v, float)}, flush=True)


def measure_class_conditional(folder: Path) -> None:
    """Pair and symmetric noise on the sources of Office-31: right labels after correction and the error of the rate."""
    records: List[Record] = []
    cells = [("pair", 0.0, 0)] + [
        (noise, rate, seed) for noise in ("pair", "symmetric") for rate in (0.2, 0.45) for seed in range(3)
    ]
    for source in SOURCES[:3]:
        view = UniversalView(FeatureList(folder / f"{source}.npz"), PRESETS["Office31"], "source")
        for noise, rate, seed in cells:
            noisy = NoisyLabels(view, noise, rate, seed)
            model = estimate_labels(np.asarray(view.features), noisy.targets, len(PRESETS["Office31"].source_classes))
            clean, wrong = noisy.clean_targets, float((noisy.targets != noisy.clean_targets).mean())
            records.append({"source": source, "noise": noise, "rate": rate, "seed": seed, "wrong": wrong,
                            "after": float((model.corrected == clean).mean()), "estimated": model.rate,
                            "interval": model.rate_interval})  # fmt: skip
    write_json(RECORDS / CONDITIONAL, records)


def measure_open_set(folder: Path) -> None:
    """What the audit calls images of target-private classes, a tenth of the source, and the other images."""
    records: List[Record] = []
    for source in SOURCES[:3]:
        for seed in range(3):
            dataset = FeatureList(folder / f"{source}.npz")
            noisy = NoisyLabels(UniversalView(dataset, PRESETS["Office31"], "source"), "open_set", 0.1, seed)
            found = find_label_issues(np.asarray(noisy.features), noisy.targets)
            foreign = noisy.clean_targets == PRESETS["Office31"].unknown
            records.append({"source": source, "seed": seed, **{
                f"{who}, {kind}": float(np.mean(found.kind[rows] == kind))
                for who, rows in (("foreign", foreign), ("others", ~foreign)) for kind in KINDS}})  # fmt: skip
    write_json(RECORDS / OPEN_SET, records)


def class_conditional_table() -> str:
    """One row per source, noise and rate."""
    groups: Dict[Any, List[Record]] = defaultdict(list)
    for r in json.loads((RECORDS / CONDITIONAL).read_text()):
        groups[r["source"], r["noise"], r["rate"]].append(r)
    head = (
        "\nPair and symmetric noise on Office-31 (`--class-conditional`), noise seeds 0, 1, 2, right labels before and after:\n"
    )
    rows = [head, "| source | noise | given labels right | label model | largest error of the rate |", "|---|---|---|---|---|"]
    for (source, noise, rate), cell in groups.items():
        before, after = " ".join(f"{1 - r['wrong']:.2f}" for r in cell), " ".join(f"{r['after']:.3f}" for r in cell)
        error = max(abs(r["estimated"] - r["wrong"]) for r in cell)
        rows.append(f"| {source} | {noise} {rate:g} | {before} | {after} | {error:.3f} |")
    return "\n".join(rows) + "\n"


def mean(values: Sequence[Optional[float]]) -> str:
    """Mean of what is there, three digits."""
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.3f}" if known else "-"


def load() -> List[Record]:
    """The records of the grid."""
    files = [RECORDS / f"{source}.json" for source in SOURCES]
    return [record for file in files if file.exists() for record in json.loads(file.read_text())]


def inside(record: Record) -> bool:
    """Whether the interval covers the truth."""
    return bool(record["ours"]["low"] - 1e-9 <= record["wrong"] <= record["ours"]["high"] + 1e-9)


def grid_table() -> str:
    """What holds over all cells, and a row per source, noise and rate."""
    records = load()
    groups: Dict[Any, List[Record]] = defaultdict(list)
    for r in records:
        groups[r["source"], r["noise"], r["rate"]].append(r)
    head = "| source | noise | wrong | interval of the rate | rate, cleanlab | right labels after | AUROC | precision |"
    rows = [head, "|---|---|---|---|---|---|---|---|"]
    for (source, noise, rate), cell in sorted(groups.items(), key=lambda item: SOURCES.index(item[0][0])):
        a, b = [r["ours"] for r in cell], [r["cleanlab"] for r in cell]
        span = " ".join(f"{o['low']:.2f}-{o['high']:.2f}{'' if o['known'] else '?'}" for o in a)
        pairs = [f"{mean([o[key] for o in a])} / {mean([o[key] for o in b])}"
                 for key in ("after", "suspects_auroc", "suspects_precision")]  # fmt: skip
        rows.append(f"| {source} | {noise}{f' {rate:g}' if rate else ''} | {mean([r['wrong'] for r in cell])} | {span} | "
                    f"{mean([o['rate'] for o in b])} | {' | '.join(pairs)} |")  # fmt: skip
    noisy = [r for r in records if r["ours"]["suspects_auroc"] is not None]
    auroc, precision = ([r["ours"][key] - r["cleanlab"][key] for r in noisy] for key in ("suspects_auroc", "suspects_precision"))
    kept, rival = ([r[who]["after"] - 1 + r["wrong"] for r in records] for who in ("ours", "cleanlab"))
    known = [r for r in records if r["ours"]["known"]]
    text = (
        f"\n{len(records)} cells. Right labels after correction minus before: smallest {round(min(kept), 4) + 0.0:+.3f}, mean "
        f"{np.mean(kept):+.3f} (cleanlab {min(rival):+.3f}, {np.mean(rival):+.3f}). AUROC minus cleanlab's: smallest "
        f"{min(auroc):+.3f}, mean {np.mean(auroc):+.3f}; precision minus cleanlab's: smallest {min(precision):+.3f}, mean "
        f"{np.mean(precision):+.3f}. The interval covers the truth in {np.mean([inside(r) for r in records]):.1%} of the cells, "
        f"and in {np.mean([inside(r) for r in known]):.1%} of the {len(known)} whose rate is known. CPU seconds per cell: "
        f"{mean([r['ours']['seconds'] for r in records])}, cleanlab with its logistic regression "
        f"{mean([r['cleanlab']['seconds'] for r in records])}.\n\n"
        "Mean over the noise seeds, one interval per seed; a question mark: `rate_known` is False. Two numbers: label model / "
        "cleanlab. Precision: share of wrong labels among the n most suspicious, n being the number of wrong ones.\n\n"
    )
    return text + "\n".join(rows) + "\n"


def hard_table() -> str:
    """The inputs of tests/stress/hard_labels.py."""
    rows = ["\nHard inputs (`tests/stress/hard_labels.py`), five draws each:\n",
            "| input | wrong, interval of the rate | right labels, mean change (smallest) |", "|---|---|---|"]  # fmt: skip
    for name, runs in json.loads((RECORDS / HARD).read_text()).items():
        spans = ", ".join(f"{r['wrong']:.2f} in {r['interval'][0]:.2f}-{r['interval'][1]:.2f}{'' if r['known'] else '?'}"
                          for r in runs)  # fmt: skip
        change = [r["change"] for r in runs]
        rows.append(f"| {name} | {spans} | {np.mean(change):+.3f} ({min(change):+.3f}) |")
    return "\n".join(rows) + "\n"


def random_table() -> str:
    """The random inputs of tests/stress/hard_labels.py, by kind of noise."""
    records = json.loads((RECORDS / RANDOM).read_text())
    clean, most = ([r for r in records if part(r["wrong"])] for part in (lambda wrong: not wrong, lambda wrong: wrong >= 0.5))
    groups: Dict[str, List[Record]] = {
        f"{len(records)} inputs": records,
        "clean labels": clean,
        "half of the labels wrong, or more": most,
    }
    for record in records:
        if 0 < record["wrong"] < 0.5:
            groups.setdefault(record["input"].partition(", ")[2], []).append(record)
    text = (
        "\nRandom inputs (`--random 1000`): 3 to 16 classes of CIFAR-10, Caltech-101, Natural Images, amazon and webcam, 15 to "
        "400 samples a class, equal or with a long tail, half of them with blurred features; pair, symmetric or "
        "random-partner noise of 0 to 0.45. *Worse*: fewer right labels after correction than before, by more than 0.005.\n"
    )
    head = "| inputs | number | right labels, mean change (smallest) | worse | interval covers, or not known |"
    rows = [text, head, "|---|---|---|---|---|"]
    for name, runs in groups.items():
        change = [r["change"] for r in runs]
        told = [not r["known"] or r["interval"][0] - 1e-4 <= r["wrong"] <= r["interval"][1] + 1e-4 for r in runs]
        rows.append(f"| {name} | {len(runs)} | {np.mean(change):+.3f} ({min(change):+.3f}) | "
                    f"{np.mean(np.array(change) < -0.005):.1%} | {np.mean(told):.1%} |")  # fmt: skip
    return "\n".join(rows) + "\n"


def open_set_table() -> str:
    """What images of no class, and the others, are called."""
    records = json.loads((RECORDS / OPEN_SET).read_text())
    columns = [f"{who}, {kind}" for who in ("foreign", "others") for kind in KINDS if kind != "duplicate"]
    rows = ["\nImages of target-private classes with labels of known ones, a tenth of the source (`--open-set`); share by kind,"
            " mean over seeds 0-2:\n", f"| source | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]  # fmt: skip
    for source in dict.fromkeys(r["source"] for r in records):
        cells = [mean([r[column] for r in records if r["source"] == source]) for column in columns]
        rows.append(f"| {source} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def tables() -> str:
    """The page's tables."""
    return grid_table() + class_conditional_table() + hard_table() + random_table() + open_set_table()


def main() -> None:
    """Measure, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="folders of .npz files")
    parser.add_argument("--sources", default=",".join(SOURCES), help="which of them (default: %(default)s)")
    parser.add_argument("--class-conditional", action="store_true", help="pair and symmetric noise on Office-31 instead")
    parser.add_argument("--open-set", action="store_true", help="images of no class on Office-31 instead")
    parser.add_argument("--again", action="store_true", help="measure the label model anew in every cell")
    parser.add_argument("--table", action="store_true", help="write the page from the records")
    args = parser.parse_args()
    for folder in args.folders:
        if args.class_conditional:
            measure_class_conditional(folder)
        if args.open_set:
            measure_open_set(folder)
        if args.class_conditional or args.open_set:
            continue
        for source in args.sources.split(","):
            if (folder / f"{source}.npz").exists():
                measure(source, folder / f"{source}.npz", args.again)
    if args.table:
        write_between_marks(PAGE, tables())


if __name__ == "__main__":
    main()
