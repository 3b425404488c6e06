"""The comparisons: each returns rows of the record."""

from contextlib import ExitStack
from typing import Any, Dict, List, Mapping, Sequence

import numpy as np

from benchmark.timing import Timing, Worker, interleave, median, speedup
from benchmark.workloads import OPTIMISATIONS, LonghandStep, PackageStep

__all__ = ["compare_steps", "compare_parameters", "ablate_steps", "difference", "median_ratio"]

#: float64 parameters and statistics that differ by no more than this count as equal
TOLERANCE = 1e-6


def difference(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> float:
    """Largest absolute difference between arrays of the same name.

    Examples::

        >>> difference({"w": np.array([1.0, 2.0])}, {"w": np.array([1.0, 2.5])})
        0.5
    """
    if a.keys() != b.keys():
        raise ValueError(f"different names: {sorted(a.keys() ^ b.keys())[:4]}")
    return max(float(np.abs(a[name].astype(float) - b[name]).max(initial=0)) for name in a)


def median_ratio(slow: Sequence[Timing], fast: Sequence[Timing]) -> Dict[str, float]:
    """Median of slow / fast by both clocks."""
    times = speedup(slow, fast)
    return {"ratio": times.wall, "ratio_cpu": times.cpu}


def compare_steps(repeats: int, steps: int, compile: bool, precision: str, **workload: Any) -> List[Dict[str, Any]]:
    """Time an iteration of the paper's method by the longhand loop and by this package.

    Args:
        repeats (int): timings of each side
        steps (int): iterations in each timing
        compile (bool): time this package compiled too
        precision (str): of this package
        workload: arguments of :class:`~benchmark.workloads.Workload`

    Returns:
        a row for this package as it is, and one for it compiled, both against the same timings of the longhand loop
    """
    rows = []
    with ExitStack() as stack:
        plain = stack.enter_context(Worker(LonghandStep, **workload))
        plain.call("run", 1)
        ours, starts = {}, {}
        for name in ("eager", "compiled")[: 1 + compile]:
            ours[name] = side = Worker(PackageStep, compile=name == "compiled", precision=precision, **workload)
            stack.enter_context(side)
            starts[name] = side.time("run", 1).wall, difference(plain.call("state"), side.call("state"))
        times = interleave({"plain": plain, **ours}, "run", [(steps, 1 + steps * i) for i in range(repeats)])
        for name, side in ours.items():
            first, float32 = starts[name]
            seconds = median(times[name]).wall / steps
            rows.append({**workload, "repeats": repeats, "steps": steps, "compile": name == "compiled", "precision": precision,
                         "plain_ms": 1000 / steps * median(times["plain"]).wall, "ours_ms": 1000 * seconds,
                         **median_ratio(times["plain"], times[name]), "warm_up_s": max(0.0, first - seconds),
                         "plain_mb": plain.call("cuda_memory") or plain.peak(),
                         "ours_mb": side.call("cuda_memory") or side.peak(), "float32_difference": float32})  # fmt: skip
    return rows


def compare_parameters(compile: bool = False, steps: int = 2, **workload: Any) -> Dict[str, Any]:
    """Both loops in float64 from the same start: passes through G, and the largest difference at the end.

    Few steps: a random network multiplies any difference by a thousand or more in each.
    """
    ends, passes = [], []
    for build, more in ((LonghandStep, {}), (PackageStep, {"compile": compile})):
        with Worker(build, double=True, count=True, **more, **workload) as worker:
            worker.call("run", steps)
            ends.append(worker.call("state"))
            passes.append({kind: count / steps for kind, count in worker.call("passes").items()})
    apart = difference(*ends)
    return {"check_steps": steps, "difference": apart, "same": apart <= TOLERANCE,
            "plain_passes": passes[0], "ours_passes": passes[1]}  # fmt: skip


def ablate_steps(repeats: int, steps: int, **workload: Any) -> List[Dict[str, Any]]:
    """Time this package's iteration with each optimisation switched off, as a multiple of the time with all of them."""
    variants = {"": (), **{name: (name,) for name in OPTIMISATIONS}, "all of these": OPTIMISATIONS}
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(PackageStep, without=off, **workload)) for name, off in variants.items()}
        for worker in workers.values():
            worker.call("run", 1)
        times = interleave(workers, "run", [(steps, 1 + steps * i) for i in range(repeats)])
    return [{**workload, "repeats": repeats, "steps": steps, "without": name,
             "ms": 1000 / steps * median(times[name]).wall, **median_ratio(times[name], times[""])}
            for name in variants if name]  # fmt: skip
