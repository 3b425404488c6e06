"""Threads of a command: as many as the process may use, and threads that wait without using a core."""

import os
from pathlib import Path
from typing import Optional

__all__ = ["available_cores", "set_thread_defaults"]


def available_cores(cgroups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Cores that this process may use: its affinity and the CPU quota of its cgroup (v1 or v2), not those of the machine."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = _quota(cgroups, own)
    return cores if quota is None else max(1, min(cores, int(quota)))


def _quota(cgroups: Path, own: Path) -> Optional[float]:
    """The smallest quota, in cores, of this process's cgroup and those above it; None if there is none."""
    found = []
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = cgroups / "cpu" if controllers else cgroups
        place = root / path.strip("/")
        for folder in (place, *place.parents):
            try:
                if controllers:
                    limit, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
                else:
                    limit, period = (folder / "cpu.max").read_text().split()
                if limit.strip() not in ("max", "-1"):
                    found.append(int(limit) / int(period))
            except (OSError, ValueError, ZeroDivisionError):
                pass  # inside a container the path is that of the host
            if folder == root:
                break
    return min(found, default=None)


def set_thread_defaults() -> None:
    """Set OpenMP's number of threads and its waiting policy; call it before torch is imported.

    A waiting thread of OpenMP uses its core for a while; where other programs run, that makes a run several times slower
    (docs/performance.md). Variables that the user or ``torchrun`` has set stay as they are.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    share = available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, share)))
