"""What a person's answers are worth: OS and H-score against the number of answers, and what wrong answers do.

    python tools/answers_table.py scenarios data --out records/answers_scenarios.jsonl
    python tools/answers_table.py methods data --methods mixture,source_only --out records/answers_methods.jsonl
    python tools/answers_table.py figure records/answers_scenarios.jsonl --out docs/images/answers.png
    python tools/answers_table.py tables records --out docs/answers.md

``scenarios``: the target model on the development scenarios of tools/scenarios.py. ``methods``: 300 steps of every method on
the six tasks of Office-31 and the six directions of three styles. The person is simulated: an answer that contradicts its
neighbourhood is asked a second time. Answered images are in no number. Rows "logistic regression" learn from the answers
alone, rows "added to the source" train with the answered images of known classes as further source images. A file is
continued by the same command; its first line is the command, the commit and the date.
"""

import argparse
import json
import subprocess
import sys
import warnings
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

import numpy as np
from scenarios import CHECKS, GROUPS, NOISES, Scenario, scenarios, source_posterior
from sklearn.linear_model import LogisticRegression

from tllib_ext.estimator import NoisyUniDA
from tllib_ext.evaluation.openset import evaluate
from tllib_ext.io import write_between_marks
from tllib_ext.split import LabelSplit
from tllib_ext.target import estimate_target
from tllib_ext.training.answer_space import AnswerSpace, simulate_person

NUMBERS, WRONG, AT = (5, 10, 20, 40), (0.05, 0.1), 20
METHODS = ("mixture", "credo", "divergence", "dance_sel", "uniot", "source_only")
STYLES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def metrics(posterior: np.ndarray, labels: np.ndarray, split: LabelSplit, kept: np.ndarray) -> Dict[str, Optional[float]]:
    """OS and H-score of the kept images; unknown is decided at one half."""
    p, k = posterior[kept], split.num_source
    report = evaluate(labels[kept], np.where(p[:, k] > 0.5, k, p[:, :k].argmax(1)), p[:, k], split, p[:, :k])
    return {"os": report.os, "h_score": report.h_score}


def answers_alone(space: AnswerSpace, index: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """A posterior by logistic regression on the answered images, in the same space; its most probable label decides."""
    out = np.zeros(space.base.shape)
    names, found = np.unique(answers), np.full(len(out), answers[0])
    if len(names) > 1:
        found = LogisticRegression(C=30, max_iter=500).fit(space.means[index], answers).predict(space.means)
    out[np.arange(len(out)), found] = 1
    return out


def rows_of(space: AnswerSpace, labels: np.ndarray, split: LabelSplit, seed: int, alone: bool) -> Iterator[Dict[str, Any]]:
    """One record for each number of answers, and for wrong answers."""
    yield {"answers": 0, **metrics(space.base, labels, split, np.arange(len(labels)))}
    for number in NUMBERS:
        if number > len(labels) // 2:
            continue
        asked = space.choose(number, seed=seed)
        found = simulate_person(space, labels, number, seed, index=asked)
        yield {"answers": number, **metrics(found.posterior(), labels, split, found.others)}
        once = simulate_person(space, labels, number, seed, again=False, index=asked)
        yield {"answers": number, "asked": "once", **metrics(once.posterior(), labels, split, once.others)}
        if alone:
            lone = answers_alone(space, once.index, once.labels)
            yield {"answers": number, "row": "logistic regression", **metrics(lone, labels, split, once.others)}
        for wrong in WRONG if number == AT and alone else ():
            for again in (True, False):
                found = simulate_person(space, labels, number, seed, wrong, again, asked)
                yield {"answers": number, "wrong": wrong, **({} if again else {"asked": "once"}),
                       **metrics(found.posterior(), labels, split, found.others)}  # fmt: skip


def of_scenario(s: Scenario) -> Iterator[Dict[str, Any]]:
    """The records of the target model on one scenario."""
    model = estimate_target(s.source, source_posterior(s, Path("runs/label_cache")), s.target)
    z = model.predict.embedding(s.target).astype(np.float16)
    space = AnswerSpace(z, model.posterior.astype(np.float32), model.predict.embedding, True, (0.5, 0.0))
    yield from rows_of(space, s.target_labels, s.split, s.seed, alone=True)


def tasks(data: Path, seeds: List[int]) -> Iterator[Scenario]:
    """Office-31's six tasks, and six directions of three styles with 3 shared, 2 and 2 private classes drawn by the seed."""
    yield from scenarios(data, ("office31_tasks",), [*NOISES], seeds=seeds)
    for seed in seeds:
        names = [str(name) for name in np.random.default_rng(seed).permutation(STYLES)]
        split = LabelSplit(tuple(names[:3]), tuple(names[3:5]), tuple(names[5:]))
        for s in scenarios(data, ("style",), ["clean"], kinds=("closed",), seeds=(0,)):
            source_name, target_name = s.task.split(" to ")
            yield _style(data, source_name, target_name, split, seed)


def _style(data: Path, source: str, target: str, split: LabelSplit, seed: int) -> Scenario:
    (xs, ys, _), (xt, yt, _) = (_read(data / "pacs_mobilenetv2" / f"{name}.npz", split, own) for name, own in
                                ((source, split.source_classes), (target, (*split.shared, *split.target_private))))  # fmt: skip
    labels = np.array([split.target_index(name) for name in yt], dtype=np.int64)
    given = np.array([split.source_index(name) for name in ys], dtype=np.int64)
    return Scenario("style_tasks", f"{source} to {target}", "clean", seed, split, xs, given, given, xt, labels)


def _read(file: Path, split: LabelSplit, names: Tuple[str, ...]) -> Tuple[np.ndarray, List[str], LabelSplit]:
    with np.load(file) as arrays:
        of = np.array([str(name) for name in arrays["classes"]])[arrays["labels"]]
        rows = np.isin(of, names)
        return arrays["features"][rows].astype(np.float32), of[rows].tolist(), split


def of_method(s: Scenario, method: str) -> Iterator[Dict[str, Any]]:
    """The records of one method on one task."""
    rate = NOISES[s.noise][1] if NOISES[s.noise] is not None else 0.0  # type: ignore[index]

    def fit(x: np.ndarray, y: np.ndarray) -> NoisyUniDA:
        return NoisyUniDA(method, steps=300, seed=s.seed, noise_rate=rate).fit(x, y, s.target)

    model = fit(s.source, s.given)
    space = model._target_space()
    yield from rows_of(space, s.target_labels, s.split, s.seed, alone=method == "mixture")
    if method not in ("source_only", "divergence", "mixture"):
        return
    found = simulate_person(space, s.target_labels, AT, s.seed, again=False)
    known = found.labels < s.num_classes
    rows = found.index[known]
    more = fit(np.concatenate([s.source, s.target[rows]]), np.concatenate([s.given, found.labels[known]]))
    yield {"answers": AT, "row": "added to the source",
           **metrics(more._target_space().base, s.target_labels, s.split, found.others)}  # fmt: skip


def main() -> None:
    """Parse the words, measure what the file does not hold yet, print the means."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=["scenarios", "methods", "figure", "tables"])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--groups", default=",".join([*GROUPS, *CHECKS]))
    parser.add_argument("--noises", default="clean")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", default="0,1,2")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.what == "figure":
        draw(args.data, args.out)
        return
    if args.what == "tables":
        files = [args.data / f"answers_{name}.jsonl" for name in ("scenarios", "methods")]
        write_between_marks(args.out, tables(*map(read, files)))
        return
    done = _begin(args.out)
    seeds = [int(seed) for seed in args.seeds.split(",")]
    if args.what == "scenarios":
        for s in scenarios(args.data, args.groups.split(","), args.noises.split(","), seeds=seeds):
            _measure(args.out, done, s, "target model", lambda s=s: of_scenario(s))
    else:
        for seed in seeds:
            for method in args.methods.split(","):
                for s in tasks(args.data, [seed]):
                    _measure(args.out, done, s, method, lambda s=s, method=method: of_method(s, method))
    print(summary(read(args.out)))


def _begin(out: Path) -> set:
    """Write the first line of a new file; the tasks that an old one holds."""
    if not out.exists():
        commit = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        ).stdout.strip()
        date = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        head = {"command": "python tools/answers_table.py " + " ".join(sys.argv[1:]), "commit": commit, "date": date}
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(head) + "\n")
    return {(r["method"], r["key"]) for r in read(out)}


def _measure(out: Path, done: set, s: Scenario, method: str, records: Any) -> None:
    if (method, s.description) in done:
        return
    place = {"method": method, "group": s.group, "task": s.task, "noise": s.noise, "seed": s.seed, "key": s.description}
    lines = [json.dumps({**place, **{k: round(v, 5) if isinstance(v, float) else v for k, v in r.items()}}) for r in records()]
    with open(out, "a") as stream:  # all lines of a task at once
        stream.write("\n".join(lines) + "\n")


def read(file: Path) -> List[Dict[str, Any]]:
    """The records of a file, without its first line."""
    return [json.loads(line) for line in file.read_text().splitlines()[1:] if line.strip()]


def group_means(records: List[Dict[str, Any]]) -> Dict[Tuple[Any, ...], List[List[float]]]:
    """(method, group, noise, row, asked, wrong, answers) to OS and H-score in % of each seed, means over tasks."""
    names = ("method", "group", "noise", "row", "asked", "wrong", "answers")
    cells: Dict[Tuple[Any, ...], Dict[int, List[Dict[str, Any]]]] = {}
    for r in records:
        cells.setdefault(tuple(r.get(name) for name in names), {}).setdefault(r["seed"], []).append(r)

    def mean(of_seed: List[Dict[str, Any]], name: str) -> float:
        values = [r[name] for r in of_seed if r[name] is not None]
        return 100 * float(np.mean(values)) if values else float("nan")

    return {key: [[mean(of_seed, name) for of_seed in seeds.values()] for name in ("os", "h_score")]
            for key, seeds in cells.items()}  # fmt: skip


def summary(records: List[Dict[str, Any]]) -> str:
    """A line for each cell: OS and H-score, mean over tasks, mean and standard deviation over seeds."""
    lines = []
    for key, values in sorted(group_means(records).items(), key=lambda item: tuple(map(str, item[0]))):
        text = " / ".join(f"{np.mean(v):.1f} ± {np.std(v, ddof=1) if len(v) > 1 else 0:.1f}" for v in values)
        lines.append(f"{' '.join(str(part) for part in key if part is not None):70} {text}  ({len(values[0])} seeds)")
    return "\n".join(lines)


TITLES = {"style": "style changes", "transfer": "data set changes", "halves": "artificial shift",
          "office31": "Office-31, random label sets", "office31_tasks": "Office-31, six tasks",
          "style_tasks": "styles, six directions"}  # fmt: skip
SHOWN = (*[(f"{n} answers" if n else "none", (None, None, None, n)) for n in (0, *NUMBERS)],
         *[(f"{AT}, {w:.0%} of them wrong", (None, None, w, AT)) for w in WRONG],
         (f"{AT}, {WRONG[1]:.0%} wrong, nobody asks again", (None, "once", WRONG[1], AT)),
         *[(f"logistic regression on {n} alone", ("logistic regression", None, None, n)) for n in NUMBERS])  # fmt: skip


def _cell(values: Optional[List[List[float]]]) -> str:
    if values is None:
        return "–"
    spread = "" if len(values[0]) == 1 else f" ± {np.std(values[0], ddof=1):.1f}"
    return f"{np.mean(values[0]):.1f}{spread} / {np.mean(values[1]):.1f}"


def _rows(title: str, heads: List[str], rows: List[List[str]]) -> str:
    lines = [f"| {title} | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows]) + "\n"


def tables(scenarios_file: List[Dict[str, Any]], methods_file: List[Dict[str, Any]]) -> str:
    """OS, mean and standard deviation over the seeds that were run, and mean H-score in %, for the page."""
    means, groups = group_means(scenarios_file), [g for g in TITLES if any(r["group"] == g for r in scenarios_file)]
    rows = [[name, *(_cell(means.get(("target model", group, "clean", *key))) for group in groups)] for name, key in SHOWN]
    text = "\n\n" + _rows("answers", [TITLES[group] for group in groups], rows)
    means = group_means(methods_file)
    places = [*dict.fromkeys((r["group"], r["noise"]) for r in methods_file)]
    heads = [f"{TITLES[group]}, {noise}" for group, noise in places]
    rows = []
    for method in dict.fromkeys(r["method"] for r in methods_file):
        for name, key in (*[(f"{n} answers" if n else "none", (None, None, None, n)) for n in (0, *NUMBERS)],
                          (f"{AT} added to the source", ("added to the source", None, None, AT))):  # fmt: skip
            cells = [_cell(means.get((method, *place, *key))) for place in places]
            if set(cells) != {"–"}:
                rows.append([f"`{method}`, {name}", *cells])
    return text + "\n" + _rows("method", heads, rows) + "\n"


def draw(file: Path, out: Path) -> None:
    """OS against the number of answers for each group of scenarios, with logistic regression on the answers alone."""
    import matplotlib.pyplot as plt

    means = group_means(read(file))
    figure, axes = plt.subplots(1, len(GROUPS), figsize=(9, 3), sharey=True, layout="constrained")
    for axis, group in zip(axes, GROUPS):
        for row, label, colour in (
            (None, "target model and answers", "#0068a3"),
            ("logistic regression", "answers alone", "#c2410c"),
        ):
            found = {key[6]: value[0] for key, value in means.items() if key[1:6] == (group, "clean", row, None, None)}
            numbers = sorted(found)
            axis.errorbar(numbers, [np.mean(found[n]) for n in numbers],
                          [np.std(found[n], ddof=1) if len(found[n]) > 1 else 0 for n in numbers],
                          label=label, color=colour, marker="o", capsize=2)  # fmt: skip
        axis.set(title=TITLES[group], xlabel="answers", xticks=[0, *NUMBERS])
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("OS (%)")
    axes[0].legend(frameon=False, loc="lower right")
    figure.savefig(out, dpi=150)


if __name__ == "__main__":
    main()
