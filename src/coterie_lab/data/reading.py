"""Reads text from files, compressed or not, and from standard input, in blocks or lines, never whole."""

import codecs
import contextlib
import gzip
import hashlib
import importlib
import io
import lzma
import os
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

from coterie_lab.needed import needed_for

BLOCK = 1 << 20  # bytes of text read at a time
LONGEST_LINE = 1 << 20  # characters: a longer line means that the file is not split into lines
PACKED = (".xz", ".gz", ".zst", ".zip")

Advance = Callable[[int], None]  # is called with the numbers of bytes read from disk


def plain(path: Path) -> Path:
    """The path without the suffix of its compression."""
    return path.with_suffix("") if path.suffix in PACKED else path


@dataclass
class TextFile:
    """One file of UTF-8 text, perhaps compressed."""

    path: Path
    size: int  # bytes on the disk
    sha256: str = ""  # of the unpacked text, known once it has been read

    @classmethod
    def at(cls, path: Path) -> "TextFile":
        """The file at this path; raises if it does not exist."""
        if path.is_dir():
            raise ValueError(f"{path} is a folder; expected a text file")
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist: give a text file")
        return cls(path, path.stat().st_size)

    def __str__(self) -> str:
        return str(self.path)

    def blocks(self, advance: Advance = lambda _: None) -> Iterator[str]:
        """The text in blocks."""
        digest, empty = hashlib.sha256(), True

        def read() -> Iterator[bytes]:
            for data in unpacked(self.path, advance):
                digest.update(data)
                yield data

        for text in decoded(self.path, read()):
            yield text
            empty = False
        if empty:
            raise ValueError(f"{self.path} is empty: give a file with text, or leave it out")
        if self.sha256 not in ("", digest.hexdigest()):
            raise ValueError(f"{self.path} changed while it was read: prepare the text again once it is at rest")
        self.sha256 = digest.hexdigest()

    def lines(self) -> Iterator[str]:
        """The lines of the text."""
        return split_lines(self.path, self.blocks())

    def described(self) -> dict[str, Any]:
        """The description that is stored with what is made from it."""
        return {"name": self.path.name, "bytes": self.size, "sha256": self.sha256}


def lines(path: Path) -> Iterator[str]:
    """The lines of a file."""
    return TextFile.at(path).lines()


def standard_input() -> Iterator[str]:
    """The lines of standard input, each as soon as it arrives."""
    if sys.stdin is None:
        raise ValueError("standard input is closed: give lines there, or the name of a file")
    read = iter(lambda: sys.stdin.buffer.readline(BLOCK), b"")
    return split_lines("standard input", decoded("standard input", read))


def decoded(name: Path | str, blocks: Iterable[bytes]) -> Iterator[str]:
    """Decodes UTF-8; raises with the line and byte of what is not text."""
    rest, line, column = b"", 1, 0  # where `rest` begins: in which line, and after how many of its bytes
    first = True
    for block in chain(blocks, [b""]):
        data = rest + block

        def place(at: int) -> tuple[int, int]:
            newline = data.rfind(b"\n", 0, at)  # noqa: B023
            before = column if newline < 0 else 0  # noqa: B023
            return line + data.count(b"\n", 0, at), before + at - newline - 1  # noqa: B023

        try:
            text, used = codecs.utf_8_decode(data, "strict", not block)
        except UnicodeDecodeError as error:
            raise _not_text(name, place(error.start), f"no valid UTF-8 ({error.reason})") from None
        if (nul := data.find(b"\0", 0, used)) >= 0:
            raise _not_text(name, place(nul), "NUL")
        (line, column), rest = place(used), data[used:]
        if text:
            yield text.removeprefix("\ufeff") if first else text  # the byte order mark
            first = False


def _not_text(name: Path | str, place: tuple[int, int], why: str) -> ValueError:
    line, column = place
    return ValueError(
        f"{name}, line {line:,}: byte {column + 1:,} of the line is {why}; give UTF-8 text, or leave the file out"
    )


def split_lines(name: Path | str, texts: Iterable[str]) -> Iterator[str]:
    """The lines of a text that comes in pieces."""
    rest, number = "", 0
    for text in texts:
        *ended, rest = (rest + text).split("\n")
        for line in ended:
            number += 1
            yield line.removesuffix("\r")
        if len(rest) > LONGEST_LINE:
            raise ValueError(
                f"{name}, line {number + 1:,}: it is longer than {LONGEST_LINE:,} characters; each line is one "
                "sentence or one pair"
            )
    if rest:
        yield rest.removesuffix("\r")


def unpacked(path: Path, advance: Advance) -> Iterator[bytes]:
    """The bytes of a file in blocks, decompressed as its name says."""
    broken = [EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error, zipfile.BadZipFile]
    if path.suffix == ".zip":
        broken += [RuntimeError, NotImplementedError]  # encrypted, or an unknown method of compression
    if path.suffix == ".zst":
        with needed_for(str(path)):
            broken.append(importlib.import_module("zstandard").ZstdError)
    with path.open("rb") as raw:
        told = 0
        try:
            for block in _streams(path, raw):
                yield block
                advance(raw.tell() - told)
                told = raw.tell()
            advance(os.fstat(raw.fileno()).st_size - told)
        except tuple(broken) as error:
            raise ValueError(f"{path} cannot be unpacked ({error}): it is damaged, or its name misleads") from error


def _streams(path: Path, raw: IO[bytes]) -> Iterator[bytes]:
    if path.suffix == ".zst":
        yield from _zstd(raw)
        return
    with contextlib.ExitStack() as open_too:
        stream: IO[bytes] | io.BufferedIOBase = raw
        if path.suffix == ".xz":
            stream = open_too.enter_context(lzma.LZMAFile(raw))
        elif path.suffix == ".gz":
            stream = open_too.enter_context(gzip.GzipFile(fileobj=raw))
        elif path.suffix == ".zip":
            archive = open_too.enter_context(zipfile.ZipFile(raw))
            if len(archive.namelist()) != 1:
                raise ValueError(f"{path} holds {len(archive.namelist())} files; expected one: unpack it into a folder")
            stream = open_too.enter_context(archive.open(archive.namelist()[0]))
        while block := stream.read(BLOCK):
            yield block


def _zstd(raw: IO[bytes]) -> Iterator[bytes]:
    # Frame by frame, because zstandard's own reader does not notice a truncated file.
    zstandard = importlib.import_module("zstandard")
    frame = None
    while data := raw.read(1 << 14):
        while data:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            if block := frame.decompress(data):
                yield block
            data = frame.unused_data if frame.eof else b""
            frame = None if frame.eof else frame
    if frame is not None:
        raise EOFError("it ends within a frame")
