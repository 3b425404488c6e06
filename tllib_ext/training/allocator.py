"""glibc's allocator for training on a CPU: keep freed memory for the next tensor instead of returning it to the system."""

import ctypes
import os

__all__ = ["keep_freed_memory"]

#: numbers of glibc's mallopt(3)
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def keep_freed_memory() -> bool:
    """Let glibc reuse the memory of freed tensors; returns whether it will.

    On a CPU, PyTorch allocates and frees every activation. By default glibc maps each large one from the kernel, which
    fills it with zeros page by page; the ablation in docs/performance.md shows the cost. Nothing is done if the
    environment sets an allocator's options, or the C library has no ``mallopt``.
    """
    chosen = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")
    if any(os.environ.get(name) for name in chosen):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
