"""Contestants in processes of their own, asked in turn: neither's memory or threads help or hinder the other."""

import multiprocessing
import os
import resource
import statistics
import sys
import time
import traceback
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence

__all__ = ["Contestant", "Timing", "alternate", "median", "ratio"]


class Timing(NamedTuple):
    """Seconds of one call."""

    wall: float
    cpu: float


class Contestant:
    """``build(**options)`` in a new process, whose methods are called from here.

    Args:
        build (callable): importable by name
        options: its arguments

    Examples::

        >>> with Contestant(list) as queue:
        ...     queue.ask("append", 3), queue.ask("__len__")
        (None, 1)
    """

    def __init__(self, build: Callable[..., Any], **options: Any):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, build, options))
        self._process.start()
        theirs.close()
        self._receive()

    def _receive(self) -> Any:
        try:
            ok, answer = self._pipe.recv()
        except EOFError:
            raise RuntimeError("the measured process died") from None
        if not ok:
            raise RuntimeError(f"the measured process failed:\n{answer}")
        return answer

    def ask(self, name: str, *args: Any) -> Any:
        """What the method returns."""
        self._pipe.send((name, args))
        return self._receive()[0]

    def time(self, name: str, *args: Any) -> Timing:
        """How long the method takes; what it returns stays there."""
        self._pipe.send((name, args))
        return self._receive()[1]

    def peak(self) -> float:
        """Largest size of the process so far, in MB."""
        self._pipe.send(None)
        return self._receive()

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.terminate()

    def __enter__(self) -> "Contestant":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


def _serve(pipe: Any, build: Callable[..., Any], options: Mapping[str, Any]) -> None:
    try:
        thing = build(**options)
        pipe.send((True, None))
        while True:
            question = pipe.recv()
            if question is None:
                pipe.send((True, _peak()))
                continue
            name, args = question
            wall, cpu = time.perf_counter(), time.process_time()
            answer = getattr(thing, name)(*args)
            timing = Timing(time.perf_counter() - wall, time.process_time() - cpu)
            pipe.send((True, (answer, timing)))
    except EOFError:
        pass
    except Exception:
        pipe.send((False, traceback.format_exc()))


def _peak() -> float:
    """MB; from the kernel's own page, because what ``getrusage`` says includes the parent's size from before exec."""
    if os.path.exists("/proc/self/status"):
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def alternate(contestants: Mapping[str, Contestant], name: str, calls: Sequence[Any]) -> Dict[str, List[Timing]]:
    """Time the method ``name`` of all contestants in turn, once with each of ``calls``' arguments."""
    times: Dict[str, List[Timing]] = {who: [] for who in contestants}
    for number, args in enumerate(calls):
        order = list(contestants)[:: 1 if number % 2 else -1]  # nobody always comes second
        for who in order:
            times[who].append(contestants[who].time(name, *args))
    return times


def median(times: Sequence[Timing]) -> Timing:
    """Median of both clocks."""
    return Timing(statistics.median(t.wall for t in times), statistics.median(t.cpu for t in times))


def ratio(slow: Sequence[Timing], fast: Sequence[Timing]) -> Timing:
    """How many times faster, by both clocks: the median of the rounds, in which both sides met the same machine."""
    rounds = list(zip(slow, fast))
    return Timing(*(statistics.median(a[clock] / max(b[clock], 1e-9) for a, b in rounds) for clock in (0, 1)))
