"""The label model and cleanlab side by side, on every source, kind of noise, rate and seed; the tables of docs/label_model.md.

    python examples/label_audit.py data/office31_resnet50 data/transfer_mobilenetv2      measure what is not in the records
    python examples/label_audit.py data/office31_resnet50 --class-conditional            the same for the second table
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
from tllib_ext.split import PRESETS
from tllib_ext.vision.datasets.imagelist import FeatureList
from tllib_ext.vision.datasets.labels_file import GivenLabels

DOCS = Path(__file__).resolve().parents[1] / "docs"
RECORDS, PAGE = DOCS / "results" / "labels", DOCS / "label_model.md"
CONDITIONAL = "class_conditional.json"
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


def measure(source: str, file: Path) -> None:
    """Add the cells of one source that are not in its records yet."""
    stored = RECORDS / f"{source}.json"
    records: List[Record] = json.loads(stored.read_text()) if stored.exists() else []
    done = {(r["noise"], r["rate"], r["seed"]) for r in records}
    dataset = FeatureList(file)
    split = PRESETS["Office31"] if source in SOURCES[:3] else LabelSplit(tuple(dataset.classes))
    view = UniversalView(dataset, split, "source")
    cells = [("none", 0.0, 0)] if source != "cifar" else [("none", 0.0, 0), *((f"human {column}", 0.0, 0) for column in HUMAN)]
    cells += [(noise, rate, seed) for seed in range(3) for rate in (0.2, 0.4) for noise in NOISES]
    for noise, rate, seed in cells:
        if (noise, rate, seed) in done:
            continue
        if noise.startswith("human"):
            noisy: NoisyLabels = GivenLabels(view, file.with_name("cifar_human_labels.csv"), noise.split()[1])
        else:
            noisy = NoisyLabels(view, noise, rate, seed)
        x, given, clean = np.asarray(view.features), noisy.targets, noisy.clean_targets
        records.append({"source": source, "noise": noise, "rate": rate, "seed": seed, "wrong": float((given != clean).mean()),
                        "ours": ours(x, given, clean, 0), "cleanlab": cleanlab(x, given, clean)})  # fmt: skip
        RECORDS.mkdir(parents=True, exist_ok=True)
        write_json(stored, records)
        print(source, noise, rate, seed, {k: v for k, v in records[-1]["ours"].items() if isinstance(v, float)}, flush=True)


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


def tables() -> str:
    """The page's tables."""
    records: List[Record] = [r for source in SOURCES if (RECORDS / f"{source}.json").exists()
                             for r in json.loads((RECORDS / f"{source}.json").read_text())]  # fmt: skip
    groups: Dict[Any, List[Record]] = defaultdict(list)
    for r in records:
        groups[r["source"], r["noise"], r["rate"]].append(r)
    head = "| source | noise | wrong | interval of the rate | rate, cleanlab | right labels after | cleanlab | AUROC | cleanlab |"
    rows = [head, "|---|---|---|---|---|---|---|---|---|"]
    for (source, noise, rate), cell in sorted(groups.items(), key=lambda item: SOURCES.index(item[0][0])):
        a, b = [r["ours"] for r in cell], [r["cleanlab"] for r in cell]
        span = " ".join(f"{o['low']:.2f}-{o['high']:.2f}{'' if o['known'] else '?'}" for o in a)
        rows.append(f"| {source} | {noise}{f' {rate:g}' if rate else ''} | {mean([r['wrong'] for r in cell])} | {span} | "
                    f"{mean([o['rate'] for o in b])} | {mean([o['after'] for o in a])} | {mean([o['after'] for o in b])} | "
                    f"{mean([o['suspects_auroc'] for o in a])} | {mean([o['suspects_auroc'] for o in b])} |")  # fmt: skip
    noisy = [r for r in records if r["ours"]["suspects_auroc"] is not None]
    gain = [r["ours"]["suspects_auroc"] - r["cleanlab"]["suspects_auroc"] for r in noisy]
    kept = [r["ours"]["after"] - (1 - r["wrong"]) for r in records]
    known = [r for r in records if r["ours"]["known"]]
    inside = [r["ours"]["low"] - 1e-9 <= r["wrong"] <= r["ours"]["high"] + 1e-9 for r in records]
    told = np.mean([i for i, r in zip(inside, records) if r["ours"]["known"]])
    rival = [r["cleanlab"]["after"] - 1 + r["wrong"] for r in records]
    text = (
        f"\n{len(records)} cells. Right labels after correction minus before: smallest {min(kept):+.3f}, mean "
        f"{np.mean(kept):+.3f} (cleanlab {min(rival):+.3f}, {np.mean(rival):+.3f}). AUROC minus cleanlab's: smallest "
        f"{min(gain):+.3f}, mean {np.mean(gain):+.3f}. The interval covers the truth in {np.mean(inside):.1%} of the cells, "
        f"and in {told:.1%} of the {len(known)} whose rate is known. CPU seconds per cell: "
        f"{mean([r['ours']['seconds'] for r in records])}, cleanlab with its logistic regression "
        f"{mean([r['cleanlab']['seconds'] for r in records])}.\n\n"
        "A question mark: `rate_known` is False. Mean over the noise seeds; one interval per seed.\n\n"
    )
    return text + "\n".join(rows) + "\n" + class_conditional_table()


def main() -> None:
    """Measure, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="folders of .npz files")
    parser.add_argument("--sources", default=",".join(SOURCES), help="which of them (default: %(default)s)")
    parser.add_argument("--class-conditional", action="store_true", help="pair and symmetric noise on Office-31 instead")
    parser.add_argument("--table", action="store_true", help="write the page from the records")
    args = parser.parse_args()
    for folder in args.folders:
        if args.class_conditional:
            measure_class_conditional(folder)
            continue
        for source in args.sources.split(","):
            if (folder / f"{source}.npz").exists():
                measure(source, folder / f"{source}.npz")
    if args.table:
        write_between_marks(PAGE, tables())


if __name__ == "__main__":
    main()
