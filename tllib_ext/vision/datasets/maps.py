"""What a frozen network makes of every image, in memory or in one memory-mapped file with a checksum for each image."""

import os
import zlib
from pathlib import Path
from typing import List, Optional, Tuple

import numpy as np
import torch
from torch import Tensor

__all__ = ["StoredMaps", "MapFile"]

#: maps of 4 dimensions are kept channels-last, as the networks compute them.
_TO_LAST, _TO_FIRST = (0, 1, 3, 4, 2), (0, 3, 1, 2)


class StoredMaps:
    r"""Float16 maps of N images in V views.

    Args:
        maps (numpy.ndarray): :math:`(N, V, H, W, C)`, or :math:`(N, V, T, D)` tokens

    Examples::

        >>> maps = StoredMaps(StoredMaps.layout(np.zeros((3, 2, 8, 4, 4), np.float16)))
        >>> maps.rows(np.array([2, 0]), np.array([0, 1])).shape, len(maps)
        (torch.Size([2, 8, 4, 4]), 3)
    """

    def __init__(self, maps: np.ndarray):
        self.maps = maps

    def __len__(self) -> int:
        return len(self.maps)

    @staticmethod
    def layout(maps: np.ndarray) -> np.ndarray:
        """:math:`(N, V, C, H, W)` in the order in which maps are kept; tokens stay."""
        return maps.transpose(_TO_LAST) if maps.ndim == 5 else maps

    def rows(self, index: np.ndarray, views: np.ndarray) -> Tensor:
        """One view of some images, float32: :math:`(B, C, H, W)`, channels-last in memory, or :math:`(B, T, D)`."""
        rows = torch.from_numpy(np.ascontiguousarray(self.maps[index, views]))
        return (rows.permute(_TO_FIRST) if rows.dim() == 4 else rows).float()


class MapFile:
    """A file of maps, of which several processes may write parts.

    Args:
        file (Path): a ``.npy`` file of records: checksum and maps of an image
        count (int): images
        shape (tuple of int): of the maps of an image, as kept: V, H, W, C
    """

    def __init__(self, file: Path, count: int, shape: Tuple[int, ...]):
        self.file, self.count = file, count
        self.entry = np.dtype([("checksum", "<u4"), ("maps", "<f2", shape)])

    def create(self, draft: Path) -> None:
        """Write the header and reserve the space: a full disk is an error here, but a crash in a mapped file."""
        with open(draft, "wb") as stream:
            np.lib.format.write_array_header_1_0(
                stream, {"descr": np.lib.format.dtype_to_descr(self.entry), "fortran_order": False, "shape": (self.count,)}
            )
            stream.flush()
            begin, size = stream.tell(), self.count * self.entry.itemsize
            if hasattr(os, "posix_fallocate"):  # not on macOS
                os.posix_fallocate(stream.fileno(), begin, size)
            else:
                stream.truncate(begin + size)

    def write(self, path: Path, index: np.ndarray, maps: np.ndarray) -> None:
        """Write the maps of some images, :math:`(B, V, H, W, C)`, into a file that :meth:`create` made."""
        handle = os.open(path, os.O_RDWR)
        try:
            begin = os.fstat(handle).st_size - self.count * self.entry.itemsize
            for position, rows in zip(index, maps):
                content = np.ascontiguousarray(rows).tobytes()
                os.pwrite(
                    handle, zlib.crc32(content).to_bytes(4, "little") + content, begin + int(position) * self.entry.itemsize
                )
            os.fsync(handle)
        finally:
            os.close(handle)

    def read(self) -> Optional[StoredMaps]:
        """The maps; None if there is no file, or one of another kind or size."""
        entries = self._entries()
        return None if entries is None else StoredMaps(entries["maps"])

    def damaged(self) -> List[int]:
        """The images whose maps are not what was written."""
        entries = self._entries()
        if entries is None:
            return list(range(self.count))
        return [i for i, entry in enumerate(entries) if zlib.crc32(entry["maps"].tobytes()) != int(entry["checksum"])]

    def _entries(self) -> Optional[np.ndarray]:
        try:
            entries = np.load(self.file, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        return entries if entries.dtype == self.entry and entries.shape == (self.count,) else None
