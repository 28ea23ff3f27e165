"""Where text comes from: files, folders, compressed or not, and text8 by its name; read in blocks, never whole."""

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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.request import urlopen

BLOCK = 1 << 20  # bytes of text read at a time
PACKED = (".xz", ".gz", ".zst", ".zip")

TEXT8 = "text8"
TEXT8_URL = "http://mattmahoney.net/dc/text8.zip"
TEXT8_MD5 = "3bea1919949baf155f99411df5fada7e"  # of the unpacked text, as published
TEXT8_FILES = ("text8", "text8.xz", "text8.zip", "text8.gz")

Progress = Callable[[int, int | None], None]  # bytes done, bytes in all


@dataclass
class TextFile:
    """One file of UTF-8 text, perhaps compressed."""

    path: Path
    size: int  # bytes on the disk
    sha256: str = ""  # of the unpacked text, known once it has been read

    def blocks(self, advance: Callable[[int], None]) -> Iterator[str]:
        """The text in blocks; `advance` hears of the bytes taken from the disk."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        digest = hashlib.sha256()
        offset = 0  # of the block, in the unpacked text
        begun = False
        for data in unpacked(self.path, advance):
            digest.update(data)
            pending = len(decoder.getstate()[0])  # the first bytes of a character that the last block cut
            try:
                text = decoder.decode(data)
            except UnicodeDecodeError as error:
                raise self._not_text(offset - pending + error.start, "is no valid UTF-8") from None
            if (nul := data.find(b"\0")) >= 0:
                raise self._not_text(offset + nul, "is NUL")
            yield text if begun else text.removeprefix("\ufeff")  # the mark that some editors put first
            begun = begun or text != ""
            offset += len(data)
        if decoder.getstate()[0]:
            raise self._not_text(offset - len(decoder.getstate()[0]), "begins a character that the file's end cuts")
        if offset == 0:
            raise ValueError(f"{self.path} is empty: give a file with text, or leave it out")
        if self.sha256 not in ("", digest.hexdigest()):
            raise ValueError(f"{self.path} changed while it was read: prepare the text again once it is at rest")
        self.sha256 = digest.hexdigest()

    def _not_text(self, offset: int, why: str) -> ValueError:
        where = "of the unpacked text " if self.path.suffix in PACKED else ""
        return ValueError(
            f"{self.path} is not UTF-8 text: byte {offset:,} {where}{why}; convert it to UTF-8, or leave it out"
        )


def read(files: Sequence[TextFile], advance: Callable[[int], None]) -> Iterator[str]:
    """The text of the files, one after the other; each begins on a line of its own."""
    last = "\n"
    for file in files:
        if last != "\n":
            yield "\n"
        for block in file.blocks(advance):
            yield block
            last = block[-1:] or last


def advancing(progress: Progress | None, total: int) -> Callable[[int], None]:
    """From news of more bytes to news of all so far, of `total`."""
    done = 0

    def advance(n: int) -> None:
        nonlocal done
        done += n
        if progress is not None:
            progress(done, total)

    return advance


def find(
    sources: Sequence[str | Path], apart: Collection[Path] = (), progress: Progress | None = None
) -> list[TextFile]:
    """The files the sources stand for; those in `apart` are left out of folders and refused when named.

    An existing file is read as it is, a folder stands for its files (see `in_folder`), and the name `text8`, where no
    file has it, for the text of that name.
    """
    others = {path.resolve() for path in apart}
    files = []
    for source in sources:
        path = Path(source)
        if path.is_file():
            if path.resolve() in others:
                raise ValueError(f"{source} was given as text to train on and to be kept apart: give it once")
            files.append(path)
        elif str(source) == TEXT8:  # and not ./text8, a folder of that name
            files.append(text8(progress))
        elif path.is_dir():
            files += [path for path in in_folder(path) if path.resolve() not in others]
        elif path.exists():
            raise OSError(f"{source} is no regular file: the text is read twice, so save it in a file first")
        else:
            raise FileNotFoundError(f"{source} does not exist: give a text file, a folder of them, or the name text8")
    for path in files:
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is empty: give a file with text, or leave it out")
    if not files:
        raise ValueError("no text to train on: give a text file, a folder of them, or the name text8")
    return [TextFile(path, path.stat().st_size) for path in files]


def check_made_from(files: Iterable[Path], ready: Path, source: dict[str, Any], **settings: Any) -> None:
    """Refuses a prepared folder whose `source` tells of other files, by their names and sizes, or other settings."""
    made = sorted((file["name"], file["bytes"]) for part in source["files"].values() for file in part)
    given = sorted((path.name, path.stat().st_size) for path in files)
    if made != given:
        before, now = (", ".join(f"{name} ({size:,} bytes)" for name, size in found) for found in (made, given))
        raise ValueError(f"{ready} was made from {before}, not from {now}: remove it, or choose another --out")
    for name, value in settings.items():
        if (then := source["settings"][name]) != value:
            raise ValueError(f"{ready} was made with {name} {then}, not {value}: remove it, or choose another --out")


def in_folder(folder: Path) -> list[Path]:
    """A folder's text files at any depth, sorted: those ending in .txt if there are any, else all not hidden."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    plain = {path: path.with_suffix("") if path.suffix in PACKED else path for path in files}
    if any(name.suffix == ".txt" for name in plain.values()):
        files = [path for path in files if plain[path].suffix == ".txt"]
    if not files:
        raise FileNotFoundError(f"{folder} holds no text files: give a folder with some, or the files themselves")
    taken: dict[Path, Path] = {}
    for path in files:
        if (other := taken.setdefault(plain[path], path)) != path:
            raise ValueError(f"{folder} holds {other.name} and {path.name}, the same text twice: remove one of them")
    return files


def unpacked(path: Path, advance: Callable[[int], None]) -> Iterator[bytes]:
    """The bytes of a file in blocks, decompressed as its name says."""
    broken = [EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error, zipfile.BadZipFile]
    if path.suffix == ".zip":
        broken += [RuntimeError, NotImplementedError]  # encrypted, or packed in a way that is not known
    if path.suffix == ".zst":
        try:
            broken.append(importlib.import_module("zstandard").ZstdError)
        except ImportError:
            raise ImportError(f"{path} needs the package zstandard: pip install 'coterie-softmax[lab]'") from None
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
    # Frame by frame, since zstandard's own reader takes a file that was cut short for a whole one.
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


def cache_folder() -> Path:
    """Where downloaded text is kept: $COTERIE_CACHE, or a folder in the user's cache."""
    if given := os.environ.get("COTERIE_CACHE"):
        return Path(given)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "coterie"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "coterie"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coterie"


def text8(progress: Progress | None = None) -> Path:
    """The file of text8, from the cache or, where it is not there, from its published address; its sum is checked."""
    folder = cache_folder()
    for name in TEXT8_FILES:
        if (folder / name).is_file():
            _check_text8(folder / name)
            return folder / name
    part = folder / f"text8.{os.getpid()}.part.zip"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with urlopen(TEXT8_URL, timeout=30) as reply, part.open("wb") as file:
            total = int(reply.headers.get("Content-Length") or 0) or None
            while data := reply.read(BLOCK >> 2):
                file.write(data)
                if progress is not None:
                    progress(file.tell(), total)
        _check_text8(part)
        part.replace(folder / "text8.zip")
    except (OSError, ValueError, HTTPException) as error:
        raise OSError(
            f"text8 is not in {folder} and could not be downloaded from {TEXT8_URL} ({error}): put text8, text8.xz, "
            "text8.zip or text8.gz there, or set COTERIE_CACHE to the folder that holds it"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    return folder / "text8.zip"


def _check_text8(path: Path) -> None:
    digest = hashlib.md5(usedforsecurity=False)
    for block in unpacked(path, lambda _: None):
        digest.update(block)
    if digest.hexdigest() != TEXT8_MD5:
        raise ValueError(
            f"{path} is not text8: the md5 of its text is {digest.hexdigest()}, expected {TEXT8_MD5}: remove it, or "
            "give another text by its path"
        )
