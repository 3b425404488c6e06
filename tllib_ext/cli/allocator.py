"""Memory of a CPU run: freed memory is kept for the next tensor instead of being given back and fetched again."""

import ctypes
import os

__all__ = ["keep_freed_memory"]

#: numbers of glibc's mallopt(3)
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def keep_freed_memory() -> bool:
    """Let glibc reuse the memory of freed tensors; returns whether it will.

    PyTorch allocates and frees every activation anew on a CPU. By default glibc maps each large one freshly from the
    kernel, which fills it with zeros, page by page: a quarter of the time of a small network's step. Nothing is done
    where the user chose an allocator, or another C library has none of this.
    """
    chosen = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")
    if any(os.environ.get(name) for name in chosen):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
