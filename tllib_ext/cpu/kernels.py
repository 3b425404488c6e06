"""The loops of ``norm.c``, ``depthwise.c``, ``winograd.c`` and ``linear.c``, built for the processor at hand by its own C
compiler (``--compile`` on a CPU)."""

import ctypes
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any, List, Tuple

import torch
from torch import Tensor, nn

from tllib_ext.errors import UserError
from tllib_ext.modules.batchnorm import check_batch

__all__ = [
    "PANEL", "VECTOR", "filter_gradients", "filter_tiles", "gradient_tiles", "input_tiles", "library",
    "linear_back", "norm_clip", "norm_clip_back", "norm_clip_depthwise", "norm_clip_depthwise_back", "norm_statistics",
    "winograd",
]  # fmt: skip

SOURCES = [Path(__file__).with_name(name) for name in ("norm.c", "depthwise.c", "winograd.c", "linear.c")]
#: of so many channels the loops of depthwise.c want a multiple, and those of winograd.c and linear.c.
VECTOR, PANEL = 8, 32
#: as fast as they can be without leaving IEEE's infinities and NaNs: a diverging run must still be seen.
FLAGS = "-O3 -march=native -fno-math-errno -fno-trapping-math -fopenmp -fPIC -shared"
REALS = {torch.float32: ("float", ctypes.c_float), torch.float64: ("double", ctypes.c_double)}


@lru_cache(maxsize=None)
def library(dtype: torch.dtype) -> Any:
    """Build and load the loops for a number format; takes about a second, once per process.

    Nothing is kept on disk: a library built on one node of a cluster may not run on another.

    Raises:
        UserError: no C compiler, or it failed
    """
    real, number = REALS[dtype]
    with tempfile.TemporaryDirectory(prefix="tllib_ext_") as folder:
        path = os.path.join(folder, "kernels.so")
        command = [*_compiler(), *FLAGS.split(), f"-DREAL={real}", *map(str, SOURCES), "-o", path, "-lm"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["nothing"]
            raise UserError(f"{shlex.join(command)} failed and said: {said[0]}; set CC to another compiler")
        # PyTorch has loaded an OpenMP library of this name already: the loops share its threads.
        built = ctypes.CDLL(path)
    pointer, size, threads = [ctypes.c_void_p], [ctypes.c_long], [ctypes.c_int]
    for name, arguments in {
        "norm_statistics": pointer + 2 * size + 2 * pointer + 2 * [number] + 6 * pointer,
        "norm_clip": pointer + 2 * size + 3 * pointer + 2 * [number] + pointer,
        "norm_clip_back": 2 * pointer + 2 * size + 4 * pointer + 3 * [number] + 3 * pointer,
        "norm_clip_depthwise": pointer + 5 * size + 4 * pointer + 2 * [number] + pointer,
        "norm_clip_depthwise_back": 2 * pointer + 5 * size + 5 * pointer + 3 * [number] + 4 * pointer,
        "input_tiles": pointer + 4 * size + pointer,
        "gradient_tiles": pointer + 4 * size + pointer,
        "filter_tiles": pointer + 6 * size + [ctypes.c_int] + pointer,
        "filter_gradients": pointer + 2 * size + pointer,
        "linear_back": 2 * pointer + 3 * size + pointer,
        "winograd": pointer + 4 * size + pointer + size + pointer,
    }.items():
        getattr(built, name).argtypes, getattr(built, name).restype = arguments + threads, None
    return built


def _compiler() -> List[str]:
    asked = shlex.split(os.environ.get("CC", ""))
    for candidate in (asked, shlex.split(sysconfig.get_config_var("CC") or ""), ["cc"], ["gcc"], ["clang"]):
        if candidate and shutil.which(candidate[0]):
            return candidate
    raise UserError("on a CPU it needs a C compiler, and none of cc, gcc, clang was found")


def norm_statistics(y: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """Mean, variance, scale and shift of a batch norm in training on channels-last images, :math:`(4, C)`; the running
    statistics move."""
    check_batch(y)
    if not y.dtype == norm.weight.dtype == norm.running_mean.dtype:  # the loops would take one for the other
        raise TypeError(f"images of {y.dtype}, batch norm of {norm.weight.dtype} and {norm.running_mean.dtype}")
    norm.num_batches_tracked.add_(1)
    channels = y.shape[1]
    memo = y.new_empty(4, channels)
    library(y.dtype).norm_statistics(
        y.data_ptr(), y.numel() // channels, channels, norm.weight.data_ptr(), norm.bias.data_ptr(), norm.eps, norm.momentum,
        norm.running_mean.data_ptr(), norm.running_var.data_ptr(), *_each(memo), torch.get_num_threads(),
    )  # fmt: skip
    return memo


def norm_clip(y: Tensor, memo: Tensor, bottom: float, top: float) -> Tensor:
    """The images normalised by what :func:`norm_statistics` said, and clipped."""
    channels, z = y.shape[1], torch.empty_like(y)
    mean, _, scale, shift = _each(memo)
    library(y.dtype).norm_clip(
        y.data_ptr(), y.numel() // channels, channels, mean, scale, shift, bottom, top, z.data_ptr(), torch.get_num_threads()
    )
    return z


def norm_clip_back(
    g: Tensor, y: Tensor, memo: Tensor, eps: float, bottom: float, top: float, out: Tensor
) -> Tuple[Tensor, Tensor, Tensor]:
    """Gradients of y (written to ``out``, which may be g), gamma and beta."""
    channels = y.shape[1]
    grads = y.new_empty(2, channels)
    library(y.dtype).norm_clip_back(
        g.data_ptr(), y.data_ptr(), y.numel() // channels, channels, *_each(memo), eps, bottom, top, out.data_ptr(),
        *_each(grads), torch.get_num_threads(),
    )  # fmt: skip
    return out, grads[0], grads[1]


def norm_clip_depthwise(y: Tensor, memo: Tensor, bottom: float, top: float, weight: Tensor, stride: int) -> Tensor:
    """:func:`norm_clip` and a depthwise 3 x 3 convolution with padding 1."""
    n, channels, high, wide = y.shape
    taps = weight.view(channels, 9).t().contiguous()
    shape = (n, channels, (high - 1) // stride + 1, (wide - 1) // stride + 1)
    out = torch.empty(shape, dtype=y.dtype, memory_format=torch.channels_last)
    mean, _, scale, shift = _each(memo)
    library(y.dtype).norm_clip_depthwise(
        y.data_ptr(), n, high, wide, channels, stride, taps.data_ptr(), mean, scale, shift, bottom, top, out.data_ptr(),
        torch.get_num_threads(),
    )  # fmt: skip
    return out


def norm_clip_depthwise_back(
    g: Tensor, y: Tensor, memo: Tensor, eps: float, bottom: float, top: float, weight: Tensor, stride: int
) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of y, gamma, beta and the weight."""
    n, channels, high, wide = y.shape
    taps, of_y, grads = weight.view(channels, 9).t().contiguous(), torch.empty_like(y), y.new_empty(11, channels)
    library(y.dtype).norm_clip_depthwise_back(
        g.data_ptr(), y.data_ptr(), n, high, wide, channels, stride, taps.data_ptr(), *_each(memo), eps, bottom, top,
        of_y.data_ptr(), *_each(grads)[:3], torch.get_num_threads(),
    )  # fmt: skip
    return of_y, grads[0], grads[1], grads[2:].t().contiguous().view_as(weight)


def _each(rows: Tensor) -> Tuple[int, ...]:
    first, step = rows.data_ptr(), rows.shape[1] * rows.element_size()
    return tuple(first + i * step for i in range(len(rows)))


def input_tiles(x: Tensor) -> Tensor:
    """:math:`B^\\top d B` of the 4 x 4 places under every 2 x 2 of channels-last images, :math:`(16, tiles, C)`."""
    return _to_tiles("input_tiles", x)


def gradient_tiles(g: Tensor) -> Tensor:
    """:math:`A g A^\\top` of every 2 x 2 places."""
    return _to_tiles("gradient_tiles", g)


def _to_tiles(kind: str, x: Tensor) -> Tensor:
    n, channels, height, width = x.shape
    tiles = x.new_empty(16, n * ((height + 1) // 2) * ((width + 1) // 2), channels)
    getattr(library(x.dtype), kind)(x.data_ptr(), n, height, width, channels, tiles.data_ptr(), torch.get_num_threads())
    return tiles


def filter_tiles(weight: Tensor, turned: bool = False) -> Tensor:
    """:math:`G w G^\\top` of every filter :math:`(out, C, 3, 3)`, as :func:`winograd` reads them; or of those turned round."""
    tiles = weight.new_empty(16, len(weight), weight.shape[1])
    library(weight.dtype).filter_tiles(
        weight.data_ptr(), *weight.shape[:2], *weight.stride(), turned, tiles.data_ptr(), torch.get_num_threads()
    )
    return tiles


def filter_gradients(sums: Tensor) -> Tensor:
    """:math:`G^\\top m G` of sums :math:`(16, out, C)` over all tiles, :math:`(out, C, 3, 3)`."""
    made = torch.empty((*sums.shape[1:], 3, 3), dtype=sums.dtype, memory_format=torch.channels_last)
    library(sums.dtype).filter_gradients(sums.data_ptr(), *sums.shape[1:], made.data_ptr(), torch.get_num_threads())
    return made


def winograd(x: Tensor, filters: Tensor) -> Tensor:
    """:math:`A^\\top [ F \\odot (B^\\top d B) ] A` of channels-last images with the :func:`filter_tiles` F."""
    n, channels, height, width = x.shape
    out = filters.shape[1]
    y = torch.empty((n, out, height, width), dtype=x.dtype, memory_format=torch.channels_last)
    library(x.dtype).winograd(
        x.data_ptr(), n, height, width, channels, filters.data_ptr(), out, y.data_ptr(), torch.get_num_threads()
    )
    return y


def linear_back(grad: Tensor, x: Tensor) -> Tensor:
    """:math:`g^\\top x`, the gradient of a linear layer's weight."""
    made = x.new_empty(grad.shape[1], x.shape[1])
    library(x.dtype).linear_back(
        grad.data_ptr(), x.data_ptr(), *x.shape, grad.shape[1], made.data_ptr(), torch.get_num_threads()
    )
    return made
