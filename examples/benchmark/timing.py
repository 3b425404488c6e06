"""Timing of code in separate processes that take turns, so that memory and threads of one do not affect another."""

import multiprocessing
import resource
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence

__all__ = ["Worker", "Timing", "interleave", "median", "speedup"]


class Timing(NamedTuple):
    """Seconds of one call, by the wall clock and of processor time."""

    wall: float
    cpu: float


class Worker:
    """``build(**options)`` in a new process; its methods are called from here.

    Args:
        build (callable): importable by name
        options: its arguments

    Examples::

        >>> with Worker(list) as items:
        ...     items.call("append", 3), items.call("__len__")
        (None, 1)
    """

    def __init__(self, build: Callable[..., Any], **options: Any):
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self._pool.submit(_build, build, options).result()

    def call(self, name: str, *args: Any) -> Any:
        """Call a method and return its result."""
        return self._pool.submit(_call, name, args).result()[0]

    def time(self, name: str, *args: Any) -> Timing:
        """Call a method and return how long it took."""
        return self._pool.submit(_call, name, args, False).result()[1]

    def peak(self) -> float:
        """Largest resident size of the process so far, in MB."""
        return self._pool.submit(_peak).result()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *exc: Any) -> None:
        self._pool.shutdown()


_built: List[Any] = []  # in the worker's process: the object whose methods are called


def _build(build: Callable[..., Any], options: Mapping[str, Any]) -> None:
    _built.append(build(**options))


def _call(name: str, args: Sequence[Any], keep: bool = True) -> Any:
    wall, cpu = time.perf_counter(), time.process_time()
    result = getattr(_built[0], name)(*args)
    return result if keep else None, Timing(time.perf_counter() - wall, time.process_time() - cpu)


def _peak() -> float:
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    with open("/proc/self/status") as status:  # getrusage on Linux includes the parent's size from before exec
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 2**10


def interleave(workers: Mapping[str, Worker], name: str, calls: Sequence[Any]) -> Dict[str, List[Timing]]:
    """Time the method ``name`` of all workers in turn, once for each of the argument lists in ``calls``."""
    times: Dict[str, List[Timing]] = {key: [] for key in workers}
    for round, args in enumerate(calls):
        for key in list(workers)[:: 1 if round % 2 else -1]:  # alternating order: no worker is always second
            times[key].append(workers[key].time(name, *args))
    return times


def median(times: Sequence[Timing]) -> Timing:
    """Median of both clocks."""
    return Timing(statistics.median(t.wall for t in times), statistics.median(t.cpu for t in times))


def speedup(slow: Sequence[Timing], fast: Sequence[Timing]) -> Timing:
    """Median over the rounds of slow / fast, by both clocks; both sides of a round met the same load of the machine."""
    rounds = list(zip(slow, fast))
    return Timing(*(statistics.median(a[clock] / max(b[clock], 1e-9) for a, b in rounds) for clock in (0, 1)))
