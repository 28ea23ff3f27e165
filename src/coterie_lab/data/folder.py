"""Prepared folders, written atomically: a vocabulary and the arrays of the parts.

Shapes: V words.
"""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import coterie
from coterie_lab.data.arrays import to_disk
from coterie_lab.data.reading import TextFile

UNK, EOS = "<unk>", "<eos>"
VOCABULARY = "vocabulary.json"
VERSION = 1
KINDS = {"coterie-corpus": "a text", "coterie-pairs": "pairs of a sentence and a title"}


@contextlib.contextmanager
def whole(out: Path, force: bool) -> Iterator[Path]:
    """Yields a folder to write to, renamed to `out` once it is complete; removes it after an error."""
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
    """Raises if the place is taken; with `force`, only if it holds files of other names than `ours`."""
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
    """Writes the words with their counts, the sizes of the parts, and the source."""
    described = {part: [file.described() for file in found] for part, found in files.items()}
    source = {"coterie": coterie.__version__, "settings": settings, "files": described, **told}
    saved = {"format": kind, "version": VERSION, "parts": parts, "words": words, "counts": counts, "source": source}
    with (folder / VOCABULARY).open("w", encoding="utf-8") as file:
        json.dump(saved, file, ensure_ascii=False)
        to_disk(file)


class OtherKind(ValueError):
    """A folder that holds something else than what was asked for."""


@contextlib.contextmanager
def opened(path: Path, kind: str, command: str) -> Iterator[dict[str, Any]]:
    """Reads what `write_vocabulary` wrote; turns errors of its use into one that names `command`, to make it anew."""
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is no folder: give one that `{command}` wrote")
    try:
        saved = json.loads((path / VOCABULARY).read_text(encoding="utf-8"))
        if saved["format"] != kind and saved["format"] in KINDS:
            raise OtherKind(f"{path} holds {KINDS[saved['format']]}: give a folder that `{command}` wrote")
        if saved["format"] != kind or saved["version"] != VERSION:
            raise ValueError(
                f"{VOCABULARY} has format {saved['format']!r} {saved['version']}, expected {kind!r} {VERSION}"
            )
        words, counts = saved["words"], saved["counts"]
        if len(words) != len(counts) or words[0] != UNK:
            raise ValueError(f"{len(words)} words and {len(counts)} counts, the first word {words[0]!r}")
        yield saved
    except OtherKind:
        raise
    except (ValueError, TypeError, LookupError, FileNotFoundError) as error:
        why = f"{VOCABULARY} lacks {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} is incomplete ({why}): write it again with `{command}`") from error
