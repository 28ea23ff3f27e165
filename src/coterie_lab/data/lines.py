"""Text line by line, from a file or from standard input; what is not text is refused with the number of its line."""

import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from coterie_lab.data.sources import unpacked

LONGEST_LINE = 1 << 20  # bytes: more is a file that nobody has split into lines


def lines(path: Path) -> Iterator[str]:
    """The lines of a file, perhaps compressed; what is not text is refused with the number of its line."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; expected a text file")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: give a text file")
    rest, number = b"", 0
    for block in chain(unpacked(path, lambda _: None), [b""]):
        *ended, rest = (rest + block).split(b"\n")
        if not block and rest:  # the file's end ends a line too
            ended, rest = [rest], b""
        for line in ended:
            number += 1
            yield _decode(path, number, line)
        if len(rest) > LONGEST_LINE:
            raise _too_long(path, number + 1)
    if number == 0:
        raise ValueError(f"{path} is empty: give a file with text, or leave it out")


def standard_input() -> Iterator[str]:
    """The lines of standard input, each as soon as it is there."""
    if sys.stdin is None:
        raise ValueError("standard input is closed: give lines there, or the name of a file")
    number = 0
    while line := sys.stdin.buffer.readline(LONGEST_LINE + 2):
        number += 1
        yield _decode("standard input", number, line.removesuffix(b"\n"))


def _decode(path: Path | str, number: int, line: bytes) -> str:
    if len(line) > LONGEST_LINE:
        raise _too_long(path, number)
    try:
        text = line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}, line {number:,}: byte {error.start + 1:,} of the line is no valid UTF-8; convert the file first"
        ) from None
    if "\0" in text:
        raise ValueError(f"{path}, line {number:,}: it holds NUL, so the file is not text")
    return text.removeprefix("\ufeff") if number == 1 else text


def _too_long(path: Path | str, number: int) -> ValueError:
    return ValueError(
        f"{path}, line {number:,}: it is longer than {LONGEST_LINE:,} bytes; each line is one sentence or one pair"
    )
