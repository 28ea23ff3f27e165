"""Prepared folders: a vocabulary, and arrays of word ids that are written in pieces and mapped; whole or not there.

Shapes: V words.
"""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

import coterie
from coterie_lab.data.reading import TextFile

UNK, EOS = "<unk>", "<eos>"
VOCABULARY = "vocabulary.json"
VERSION = 1
Ids = NDArray[np.uint16] | NDArray[np.int32]


def dtype_of(n_words: int) -> np.dtype[Any]:
    """The smallest type that holds the ids of so many words."""
    return np.dtype(np.uint16 if n_words <= 1 << 16 else np.int32)


class Writer:
    """An array that grows, in a file.

    By plain writes, since a full disk answers those with an error, and writes to a mapped file with a dead process.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self.dtype, self.length = dtype, 0
        self.file = path.open("w+b")
        _header(self.file, dtype, 0)
        self.begin = self.file.tell()

    def add(self, values: Iterable[int], length: int) -> None:
        """Adds so many values at the end."""
        self.file.write(np.fromiter(values, self.dtype, length).data)
        self.length += length

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self.file:
            if kind is None:
                self.file.seek(0)
                _header(self.file, self.dtype, self.length)  # numpy leaves room for a longer length
                assert self.file.tell() == self.begin
                to_disk(self.file)


def mapped(path: Path, length: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array of the disk; refused if it is not what it should be."""
    found: NDArray[Any] = npy.open_memmap(path, mode="r")
    if found.shape != (length,) or found.dtype != dtype or length == 0:
        raise ValueError(
            f"{path.name} holds {found.dtype} of shape {found.shape}, expected {dtype} of shape ({length},)"
        )
    return found


def _header(file: IO[bytes], dtype: np.dtype[Any], length: int) -> None:
    npy.write_array_header_1_0(file, {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": (length,)})


def to_disk(file: IO[Any]) -> None:
    """Forces what was written to the disk."""
    file.flush()
    os.fsync(file.fileno())


@contextlib.contextmanager
def whole(out: Path, force: bool) -> Iterator[Path]:
    """A folder to write to that takes the name `out` once it is whole; of a failure nothing is left."""
    folder, old = (out.parent / f".{out.name}.{os.getpid()}.{state}" for state in ("part", "old"))
    try:
        folder.mkdir(parents=True)
        yield folder
        if force and out.exists():
            out.rename(old)
        folder.rename(out)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        if old.exists():
            old.rename(out)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(
                f"{out} could not be written ({error.strerror}): make room there, or choose another place"
            ) from error
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def refuse(out: Path, force: bool, ours: Collection[str]) -> None:
    """Refuses a place that is taken; with `force`, one that holds files of other names than `ours`."""
    if not out.exists() and not out.is_symlink():
        return
    if not force:
        raise FileExistsError(f"{out} exists: choose another place, or replace it with --force (force=True)")
    if not out.is_dir() or out.is_symlink() or {path.name for path in out.iterdir()} - set(ours):
        raise FileExistsError(
            f"{out} holds more than a corpus, and is not replaced: choose another place, or remove it"
        )


def write_vocabulary(
    folder: Path, kind: str, words: list[str], counts: list[int], parts: dict[str, Any], settings: dict[str, Any],
    files: Mapping[str, Iterable[TextFile]], **told: Any,
) -> None:  # fmt: skip
    """Writes the words and how often each occurs, how much each part holds, and the source of all that."""
    described = {part: [file.described() for file in found] for part, found in files.items()}
    source = {"coterie": coterie.__version__, "settings": settings, "files": described, **told}
    saved = {"format": kind, "version": VERSION, "parts": parts, "words": words, "counts": counts, "source": source}
    with (folder / VOCABULARY).open("w", encoding="utf-8") as file:
        json.dump(saved, file, ensure_ascii=False)
        to_disk(file)


@contextlib.contextmanager
def opened(path: Path, kind: str, command: str) -> Iterator[dict[str, Any]]:
    """What `write_vocabulary` wrote; the folder, which `command` made, is refused if what is done with that fails."""
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is no folder: give one that `{command}` wrote")
    try:
        saved = json.loads((path / VOCABULARY).read_text(encoding="utf-8"))
        if saved["format"] != kind or saved["version"] != VERSION:
            raise ValueError(
                f"{VOCABULARY} has format {saved['format']!r} {saved['version']}, expected {kind!r} {VERSION}"
            )
        words, counts = saved["words"], saved["counts"]
        if len(words) != len(counts) or words[0] != UNK:
            raise ValueError(f"{len(words)} words and {len(counts)} counts, the first word {words[0]!r}")
        yield saved
    except (ValueError, TypeError, LookupError, FileNotFoundError) as error:
        why = f"{VOCABULARY} lacks {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} is not whole ({why}): write it again with `{command}`") from error
