"""Tables of stored runs for the documentation: OS / H-score in %, mean ± standard deviation over seeds.

Used by ``fill.py`` for the markers ``<!-- runs:NAME -->``; NAME is a key of :data:`TABLES`.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Sequence

from tllib_ext.report.tables import MISSING, stat

RESULTS = Path(__file__).resolve().parent / "results"
Record = Dict[str, Any]

#: the methods that are compared with ours.
METHODS = ("source_only", "dann", "tcl", "etn", "sta", "uan", "dance", "dance_sel", "ovanet", "coteaching", "jocor", "cmu", "dcc",
           "uniot", "lead", "mlnet", "ppot", "dividemix", "gearnet", "divergence")  # fmt: skip


@lru_cache(maxsize=None)
def load(name: str) -> List[Record]:
    """The finished runs in a file below ``docs/results``."""
    records = json.loads((RESULTS / name).read_text(encoding="utf-8"))["records"]
    return [r for r in records if "error" not in r]


def select(records: Sequence[Record], **keys: Any) -> List[Record]:
    """Those with these values."""
    return [r for r in records if all(r.get(key) == value for key, value in keys.items())]


def percent(values: Sequence[float]) -> str:
    """``mean ± standard deviation`` of shares, in one line of a narrow column."""
    found = stat(values)
    if found is None:
        return MISSING
    return f"{100 * found.mean:.1f}" + ("" if found.std is None else f"\u00a0±\u00a0{100 * found.std:.1f}")


def both(records: Sequence[Record], metrics: Sequence[str] = ("os", "h_score")) -> str:
    """``OS / H-score``; a dash where there is no run."""
    return " / ".join(percent([r[metric] for r in records]) for metric in metrics) if records else MISSING


def spoken(task: str) -> str:
    """``A to D`` for ``A2D``."""
    return task.replace("2", " to ")


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = ["| " + " | ".join(line) + " |" for line in (header, *rows)]
    return "\n".join([lines[0], "|---" * len(header) + "|", *lines[1:]])


def by_learning_rate() -> Dict[str, List[Record]]:
    """Runs of 1000 steps at the two learning rates of the bottleneck."""
    return {
        "0.1x": load("office31/comparison.json") + load("bottleneck_lr/systems_0.1.json"),
        "1x": load("bottleneck_lr/office31_1.json") + load("bottleneck_lr/systems_1.json"),
    }


def bottleneck_auroc() -> str:
    """Three methods on A to D, by OS and AUROC."""
    rates = by_learning_rate()
    runs = {name: [select(records, row=name, task="A2D", noise="pair 0.2") for records in rates.values()]
            for name in ("source_only", "dance", "ovanet")}  # fmt: skip
    rows = [[f"`{name}`", *(both(records, ("os", "auroc")) for records in cells)] for name, cells in runs.items()]
    return markdown(["method", "0.1x", "1x (`--bottleneck-lr-mult 1`)"], rows)


def bottleneck(noise: str) -> str:
    """A to D and W to A by the learning rate of the bottleneck."""
    rates = by_learning_rate()
    columns = [(task, rate) for task in ("A2D", "W2A") for rate in rates]
    rows = [[f"`{method}`", *(both(select(rates[rate], row=method, task=task, noise=noise)) for task, rate in columns)]
            for method in METHODS]  # fmt: skip
    return markdown(["method", *(f"{spoken(task)}, {rate}" for task, rate in columns)], rows)


def bottleneck_development() -> str:
    """The paper's method on the development tasks by the learning rate of the bottleneck."""
    rates = {f"{rate}x": load(f"bottleneck_lr/development_{rate}.json") for rate in ("0.1", "1")}
    tasks = dict.fromkeys(r["task"] for r in rates["1x"])
    rows = [[spoken(task), *(both(select(runs, task=task)) for runs in rates.values())] for task in tasks]
    return markdown(["task", *rates], rows)


def tllib() -> str:
    """tllib's methods with two rules for unknown."""
    rules = {"entropy": load("tllib/comparison.json"), "target model": load("tllib_target_model/comparison.json")}
    columns = [(task, noise) for task in ("A2D", "W2A") for noise in ("pair 0.2", "symmetric 0.45")]
    rows = []
    for method in sorted({r["row"] for r in rules["entropy"]}):
        for rule, records in rules.items():
            cells = [both(select(records, row=method, task=task, noise=noise)) for task, noise in columns]
            if set(cells) != {MISSING}:
                rows.append([f"`{method}`", "its own" if method == "tllib:osbp" else rule, *cells])
    return markdown(["method", "rule", *(f"{spoken(task)}, {noise}" for task, noise in columns)], rows)


def development() -> str:
    """The paper's method and CREDO on the development tasks."""
    human = select(load("credo_development/human.json"), row="credo") + load("credo_development/human_told.json")
    human = [{**r, "noise": "human labels `worse`"} for r in human]
    records, rows = load("credo_development/simulated.json") + human, []
    for task, noise in dict.fromkeys((r["task"], r["noise"]) for r in records):
        cells = [both(select(records, task=task, noise=noise, row=name)) for name in ("divergence", "credo")]
        rows.append([spoken(task), noise, *cells])
    return markdown(["task", "noise", "`divergence`", "`credo`"], rows)


def _scenario_rows(cells: Callable[[Sequence[Record]], List[str]]) -> List[List[str]]:
    """Rows of a table by group and noise; every cell is of the model before and of the model now."""
    files = [RESULTS.parents[1] / "records" / f"target_scenarios{name}.jsonl" for name in ("_before", "")]
    models, rows = [[json.loads(line) for line in file.read_text().splitlines()[1:]] for file in files], []
    for group, noise in dict.fromkeys((r["group"], r["noise"]) for r in models[1]):
        chosen = [select(records, group=group, noise=noise) for records in models]
        rows.append([group, noise, str(len(chosen[1])), *(" → ".join(pair) for pair in zip(*map(cells, chosen)))])
    return rows


def _mean(values: Iterable[Any]) -> str:
    found = [float(value) for value in values if value is not None]
    return f"{100 * sum(found) / len(found):.1f}" if found else MISSING


def target_scenarios() -> str:
    """OS, H-score and classes of the target model, before and now, by group of development scenarios."""

    def cells(records: Sequence[Record]) -> List[str]:
        return [f"{_mean(r['os'] for r in records)} / {_mean(r['h_score'] for r in records)}",
                _mean(r["closed_accuracy"] for r in records)]  # fmt: skip

    return markdown(
        ["scenarios", "labels", "number", "OS / H-score, before → now", "classes, before → now"], _scenario_rows(cells)
    )


def target_share() -> str:
    """The interval of the share of unknown against the truth, before and now."""

    def cells(records: Sequence[Record]) -> List[str]:
        error = [abs(r["share"] - r["true_share"]) for r in records]
        return [_mean(error), _mean(r["low"] - 1e-9 <= r["true_share"] <= r["high"] + 1e-9 for r in records),
                _mean(e > 0.1 and r["known"] for e, r in zip(error, records)),
                _mean(not r["known"] for e, r in zip(error, records) if e <= 0.1)]  # fmt: skip

    return markdown(
        ["scenarios", "labels", "number", "error of the share", "covered", "silent", "needless"], _scenario_rows(cells)
    )


def target_constants() -> str:
    """Every constant of the target model: its value, and what half and double of it change in OS and H-score."""
    lines = (RESULTS.parents[1] / "records" / "target_constants.jsonl").read_text().splitlines()[1:]
    first, *records = [json.loads(line) for line in lines]
    rows = []
    for name in dict.fromkeys(r["constant"] for r in records):
        pair = select(records, constant=name)
        changes = [" / ".join(f"{100 * (r[key] - first[key]):+.1f}" for key in ("os", "h_score")) for r in pair]
        rows.append([f"`{name}`", str(pair[0]["is"]), *changes])
    return markdown(["constant", "is", "half", "double"], rows)


def treated() -> str:
    """The paper's method behind the label model and behind confident learning."""
    records = load("labels_divergence/records.json")
    tasks = list(dict.fromkeys(r["task"] for r in records))

    def cell(noise: str, names: Sequence[str]) -> str:
        texts = []
        for by in ("label-model", "confident"):
            runs = [select(records, noise=noise, task=task, labels_by=by) for task in names]  # in the order of the seeds
            texts.append(percent([sum(r["os"] for r in same) / len(same) for same in zip(*runs)]))
        return " / ".join(texts)

    rows = [[noise, *(cell(noise, [task]) for task in tasks), cell(noise, tasks)]
            for noise in dict.fromkeys(r["noise"] for r in records)]  # fmt: skip
    return markdown(["noise", *map(spoken, tasks), "mean"], rows)


def by_seed(records: Sequence[Record], metrics: Sequence[str] = ("os", "h_score")) -> str:
    """``OS / H-score``, means over the tasks of each seed."""
    seeds = [select(records, seed=seed) for seed in sorted({r["seed"] for r in records})]
    return " / ".join(percent([sum(r[metric] for r in same) / len(same) for same in seeds]) for metric in metrics)


def image_noise() -> str:
    """The paper's method, told the rate, and CREDO, under noise that depends on the image."""
    records, rows = load("image_noise/records.json"), []
    for noise in dict.fromkeys(r["noise"] for r in records):
        told, ours = (select(records, noise=noise, row=name) for name in ("divergence", "credo"))
        least = [min(b[metric] - a[metric] for a, b in zip(told, ours)) for metric in ("os", "h_score")]
        rows.append([noise, by_seed(told), by_seed(ours), " / ".join(f"{100 * value:+.1f}" for value in least)])
    return markdown(["noise", "`divergence`, told the rate", "`credo`", "smallest difference of a run"], rows)


TABLES: Dict[str, Callable[[], str]] = {
    "bottleneck_pair": lambda: bottleneck("pair 0.2"),
    "bottleneck_symmetric": lambda: bottleneck("symmetric 0.45"),
    "bottleneck_auroc": bottleneck_auroc,
    "bottleneck_development": bottleneck_development,
    "development": development,
    "image_noise": image_noise,
    "target_scenarios": target_scenarios,
    "target_share": target_share,
    "target_constants": target_constants,
    "tllib": tllib,
    "treated": treated,
}
