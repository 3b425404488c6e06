"""The comparisons themselves: who competes, what is asked, what is written down."""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy as np

from benchmark.contest import Contestant, Timing, alternate, median, ratio
from benchmark.pipelines import OurData, OurEvaluation, PlainData, PlainEvaluation, photographs, write_photographs
from benchmark.scenes import OurStep, PlainStep

__all__ = ["compare_steps", "compare_parameters", "compare_data", "compare_evaluations", "difference"]

#: the largest difference of any parameter or statistic in float64 that counts as none.
TOLERANCE = 1e-6


def difference(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> float:
    """Largest absolute difference of any two numbers of the same name and place.

    Examples::

        >>> difference({"w": np.array([1.0, 2.0])}, {"w": np.array([1.0, 2.5])})
        0.5
    """
    if a.keys() != b.keys():
        raise ValueError(f"different names: {sorted(a.keys() ^ b.keys())[:4]}")
    return max(float(np.abs(a[name].astype(float) - b[name]).max(initial=0)) for name in a)


def _result(times: Mapping[str, List[Timing]], per: float, unit: str) -> Dict[str, float]:
    """Medians of both sides in ``unit`` per piece and their ratio, by the wall clock and the processor's."""
    scale = {"ms": 1000.0, "s": 1.0}[unit] / per
    plain, ours = (median(times[who]) for who in ("plain", "ours"))
    times_faster = ratio(times["plain"], times["ours"])
    return {f"plain_{unit}": scale * plain.wall, f"ours_{unit}": scale * ours.wall, "ratio": times_faster.wall,
            f"plain_cpu_{unit}": scale * plain.cpu, f"ours_cpu_{unit}": scale * ours.cpu,
            "ratio_cpu": times_faster.cpu}  # fmt: skip


def compare_steps(
    arch: str, repeats: int, steps: int, compile: bool = False, precision: str = "fp32", **scene: Any
) -> List[Dict[str, Any]]:
    """Time an iteration of the paper's method in all forms, in turn.

    Args:
        arch (str): a backbone, or ``features``
        repeats (int): how often each side is timed
        steps (int): iterations in each of these
        compile (bool): our side a second time, compiled
        precision (str): of our side
        scene: other arguments of :class:`~benchmark.scenes.Scene`

    Returns:
        a row for our side as it is, and one for it compiled; both against the same timings of the other side
    """
    rows = []
    with ExitStack() as stack:
        plain = stack.enter_context(Contestant(PlainStep, arch=arch, **scene))
        plain.ask("run", 1)
        ours, starts = {}, {}
        for compiled in (False, True)[: 1 + compile]:
            side = Contestant(OurStep, arch=arch, compile=compiled, precision=precision, **scene)
            ours[compiled] = stack.enter_context(side)
            starts[compiled] = side.time("run", 1).wall, difference(plain.ask("state"), side.ask("state"))
        times = alternate({"plain": plain, **ours}, "run", [(steps, 1 + steps * i) for i in range(repeats)])
        for compiled, side in ours.items():
            first, after_one = starts[compiled]
            row = {"arch": arch, "px": scene.get("px"), "batch": scene.get("batch"), "repeats": repeats, "steps": steps,
                   "compile": compiled, "precision": precision,
                   **_result({"plain": times["plain"], "ours": times[compiled]}, steps, "ms")}  # fmt: skip
            # What the first step takes beyond the others is a warm-up too.
            row["warm_up_s"] = side.ask("compile_seconds") + max(0.0, first - row["ours_ms"] / 1000)
            cuda = [who.ask("memory") for who in (plain, side)]
            row.update(zip(("plain_mb", "ours_mb"), cuda if cuda[0] is not None else (plain.peak(), side.peak())))
            rows.append({**row, "float32_difference": after_one})
    return rows


def compare_parameters(arch: str, steps: int = 2, compile: bool = False, **scene: Any) -> Dict[str, Any]:
    """Both forms in float64 from the same start: passes through G, and how far apart they end.

    Few steps: a random network multiplies a difference by a thousand or more in each, whatever made it.
    """
    said = {}
    for name, build, more in (("plain", PlainStep, {}), ("ours", OurStep, {"compile": compile})):
        with Contestant(build, arch=arch, double=True, count=True, **more, **scene) as who:
            start = who.ask("state")
            who.ask("run", steps)
            said[name] = start, who.ask("state"), who.ask("passes")
    (start, end, passes), (_, other, fewer) = said["plain"], said["ours"]
    apart, names = difference(end, other), [name for name in end if end[name].dtype.kind == "f"]
    moved = difference({name: start[name] for name in names}, {name: end[name] for name in names})
    return {"check_steps": steps, "moved": moved, "difference": apart, "same": apart <= TOLERANCE,
            "plain_forwards": passes["forward"] / steps, "plain_backwards": passes["backward"] / steps,
            "ours_forwards": fewer["forward"] / steps, "ours_backwards": fewer["backward"] / steps}  # fmt: skip


def _domains(root: Optional[Path], work: Path, limit: int) -> Iterator[Tuple[str, List[str]]]:
    """Name and photographs of what is compared on: two of Office-31's domains, or JPEG files of their sizes."""
    for name, side in (("dslr", 1000), ("amazon", 300)):
        if root is not None:
            yield name, photographs(root / name, limit)
        else:
            yield f"generated {side} x {side}", write_photographs(work / name, side, limit)


def compare_data(
    root: Optional[Path], repeats: int, batches: int, limit: int = 400, batch: int = 36, threads: int = 0
) -> List[Dict[str, Any]]:
    """Images per second of both pipelines in one process, and of building the cache against Pillow's pipeline."""
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for name, paths in _domains(root, Path(place), limit):
            options = dict(paths=paths, batch=batch, threads=threads)
            with Contestant(PlainData, **options) as a, Contestant(OurData, folder=f"{place}/cache", **options) as b:
                apart = float(np.abs(a.ask("sample") - b.ask("sample")).max())
                both = {"plain": a, "ours": b}
                for who in both.values():
                    who.ask("run", 1)
                read = _result(alternate(both, "run", [(batches, 1 + batches * i) for i in range(repeats)]), batches * batch, "s")
                made, made_by_two = (_result(alternate(both, "everything", [(n,)] * repeats), len(paths), "s") for n in (1, 2))
            rows.append({"domain": name, "images": len(paths), "batch": batch, "repeats": repeats,
                         "plain_per_s": 1 / read["plain_s"], "ours_per_s": 1 / read["ours_s"], "ratio": read["ratio"],
                         "ratio_cpu": read["ratio_cpu"], "build_per_s": 1 / made["ours_s"], "build_ratio": made["ratio"],
                         "build_ratio_cpu": made["ratio_cpu"],
                         "build_by_two_ratio": made_by_two["ratio"], "build_by_two_ratio_cpu": made_by_two["ratio_cpu"],
                         "pixel_difference": apart})  # fmt: skip
    return rows


def compare_evaluations(root: Optional[Path], arch: str, repeats: int, limit: int = 72, **scene: Any) -> List[Dict[str, Any]]:
    """Time of classes and scores of some photographs, from files and from the cache."""
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for name, paths in _domains(root, Path(place), limit):
            options = dict(paths=paths, arch=arch, **scene)
            with Contestant(PlainEvaluation, **options) as a, Contestant(OurEvaluation, folder=f"{place}/cache", **options) as b:
                (classes, scores), (ours, our_scores) = a.ask("evaluate"), b.ask("evaluate")
                times = alternate({"plain": a, "ours": b}, "evaluate", [()] * repeats)
                rows.append({"domain": name, "arch": arch, "images": len(paths), "repeats": repeats,
                             **_result(times, len(paths), "ms"), "same_classes": float((classes == ours).mean()),
                             "score_difference": float(np.abs(scores - our_scores).max()),
                             "plain_mb": a.peak(), "ours_mb": b.peak()})  # fmt: skip
    return rows
