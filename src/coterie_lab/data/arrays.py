"""Arrays of word ids on disk, written in pieces and memory-mapped."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

Ids = NDArray[np.uint16] | NDArray[np.int32]


def dtype_of(n_words: int) -> np.dtype[Any]:
    """The smallest dtype that holds the ids of `n_words` words."""
    return np.dtype(np.uint16 if n_words <= 1 << 16 else np.int32)


class Writer:
    """Writes an array that grows to a file.

    It uses plain writes, because on a full disk these raise an error, while writes to a mapped file kill the process.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self.dtype, self.length = dtype, 0
        self.file = path.open("w+b")
        _header(self.file, dtype, 0)
        self.begin = self.file.tell()

    def add(self, values: Iterable[int], length: int) -> None:
        """Appends values."""
        self.file.write(np.fromiter(values, self.dtype, length).data)
        self.length += length

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self.file:
            if kind is None:
                self.file.seek(0)
                _header(self.file, self.dtype, self.length)  # numpy's header has room for a longer length
                assert self.file.tell() == self.begin
                to_disk(self.file)


def mapped(path: Path, length: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Maps an array on disk; raises unless it has this length and dtype."""
    found: NDArray[Any] = npy.open_memmap(path, mode="r")
    if found.shape != (length,) or found.dtype != dtype or length == 0:
        raise ValueError(
            f"{path.name} holds {found.dtype} of shape {found.shape}, expected {dtype} of shape ({length},)"
        )
    return found


def _header(file: IO[bytes], dtype: np.dtype[Any], length: int) -> None:
    npy.write_array_header_1_0(file, {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": (length,)})


def to_disk(file: IO[Any]) -> None:
    """Syncs what was written to the disk."""
    file.flush()
    os.fsync(file.fileno())
