"""Finds text8 in the cache or downloads it, and verifies its checksum."""

import contextlib
import hashlib
import os
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

from coterie_lab.data.reading import BLOCK, unpacked

Progress = Callable[[int, int | None], None]  # bytes done, bytes in all

NAME = "text8"
URL = "http://mattmahoney.net/dc/text8.zip"
MD5 = "3bea1919949baf155f99411df5fada7e"  # of the unpacked text, as published
FILES = ("text8", "text8.xz", "text8.zip", "text8.gz")


def cache_folder() -> Path:
    """The folder of downloaded text: $COTERIE_CACHE, or a folder in the user's cache."""
    if given := os.environ.get("COTERIE_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coterie"


def find(progress: Progress | None = None) -> Path:
    """The file of text8, from the cache or else downloaded; raises unless its checksum is right."""
    folder = cache_folder()
    for name in FILES:
        if (folder / name).is_file():
            _check(folder / name)
            return folder / name
    part = folder / f"text8.{os.getpid()}.part.zip"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with urlopen(URL, timeout=30) as reply, part.open("wb") as file:
            total = int(reply.headers.get("Content-Length") or 0) or None
            while data := reply.read(BLOCK >> 2):
                file.write(data)
                if progress is not None:
                    progress(file.tell(), total)
        _check(part)
        part.replace(folder / "text8.zip")
    except (OSError, ValueError, HTTPException) as error:
        raise OSError(
            f"text8 is not in {folder} and could not be downloaded from {URL} ({error}): put text8, text8.xz, "
            "text8.zip or text8.gz there, or set COTERIE_CACHE to the folder that holds it"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    return folder / "text8.zip"


def _check(path: Path) -> None:
    digest = hashlib.md5(usedforsecurity=False)
    for block in unpacked(path, lambda _: None):
        digest.update(block)
    if digest.hexdigest() != MD5:
        raise ValueError(
            f"{path} is not text8: the md5 of its text is {digest.hexdigest()}, expected {MD5}: remove it, or "
            "give another text by its path"
        )
