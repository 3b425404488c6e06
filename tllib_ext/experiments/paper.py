"""The numbers of the CVPR 2021 paper, shipped as ``experiments/data/paper_tables.json`` with their source."""

import json
from functools import lru_cache
from importlib import resources
from typing import Iterable, Optional, Sequence

from tllib_ext.typing import Record

__all__ = ["paper_tables", "benchmark_of", "noise_code", "published", "published_ablation"]

#: first letters of a benchmark's domains, as the paper writes its tasks -> the paper's name of the benchmark.
_BENCHMARKS = {
    frozenset({"amazon", "dslr", "webcam"}): "office",
    frozenset({"art", "clipart", "product", "real_world"}): "officehome",
    frozenset({"synthetic", "real"}): "visda",
}


@lru_cache(maxsize=None)
def paper_tables() -> Record:
    """The file as it is: ``source metric methods variants tasks table2 table3 table4``.

    Examples::

        >>> paper_tables()["table2"]["office"]["P20"]["Ours"]
        91.22
    """
    text = resources.files("tllib_ext.experiments").joinpath("data/paper_tables.json").read_text(encoding="utf-8")
    return json.loads(text)


def benchmark_of(domains: Iterable[str]) -> Optional[str]:
    """``office``, ``officehome`` or ``visda`` by the names of all domains, None for other data.

    Examples::

        >>> benchmark_of(["webcam", "amazon", "dslr"]), benchmark_of(["left", "right"])
        ('office', None)
    """
    names = frozenset("real_world" if name.lower() in ("real world", "realworld") else name.lower() for name in domains)
    return _BENCHMARKS.get(names)


def noise_code(kind: str, rate: float) -> str:
    """The paper's code of a noise; ``clean`` without any.

    Examples::

        >>> noise_code("pair", 0.2), noise_code("symmetric", 0.45), noise_code("none", 0.2)
        ('P20', 'S45', 'clean')
    """
    if kind == "none" or rate == 0:
        return "clean"
    return f"{kind[0].upper()}{100 * rate:g}"


def published(benchmark: Optional[str], code: str, method: str, tasks: Sequence[str]) -> Optional[float]:
    """The paper's OS in percent of a method, averaged over ``tasks``; None where it cannot be known.

    A task's number is in Table 3 (P45 and S45) or, for the paper's own method at P20, in Table 4; the mean over all
    tasks of a benchmark is in Table 2.

    Examples::

        >>> published("office", "S45", "dance", ["A2D"]), published("office", "S20", "dance", ["A2D"])
        (27.68, None)
    """
    tables = paper_tables()
    name = tables["methods"].get(method)
    if benchmark is None or name is None or not tasks:
        return None
    if set(tasks) == set(tables["tasks"][benchmark]):
        return tables["table2"][benchmark].get(code, {}).get(name)
    return _mean([_of_task(benchmark, code, name, task) for task in tasks])


def _mean(values: Sequence[Optional[float]]) -> Optional[float]:
    """None where one of the values is."""
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 4) if len(known) == len(values) else None


def _of_task(benchmark: str, code: str, name: str, task: str) -> Optional[float]:
    tables = paper_tables()
    value = tables["table3"].get(benchmark, {}).get(code, {}).get(name, {}).get(task)
    ablation = tables["table4"]
    if value is None and (benchmark, code) == (ablation["dataset"], ablation["noise"]):
        value = ablation["rows"].get(name, {}).get(task)
    return value


def published_ablation(benchmark: Optional[str], code: str, variant: str, tasks: Sequence[str]) -> Optional[float]:
    """Table 4: a variant (``no_select`` … ``kl``, empty for the whole method), averaged over ``tasks``.

    Examples::

        >>> published_ablation("office", "P20", "no_sep", ["A2D"])
        84.89
    """
    tables = paper_tables()
    ablation, row = tables["table4"], tables["variants"].get(variant)
    if (benchmark, code) != (ablation["dataset"], ablation["noise"]) or row is None or not tasks:
        return None
    if set(tasks) == set(tables["tasks"][benchmark]):
        return ablation["rows"][row]["mean"]
    return _mean([ablation["rows"][row].get(task) for task in tasks])
