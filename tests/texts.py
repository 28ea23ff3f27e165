"""Texts for tests: written plainly or packed, and read back."""

import gzip
import lzma
import zipfile
from pathlib import Path

import pytest

from coterie_lab.data.corpus import Corpus


def save(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def pack(path: Path, text: str) -> Path:
    data = text.encode()
    if path.suffix == ".xz":
        path.write_bytes(lzma.compress(data[:99]) + lzma.compress(data[99:]))  # two streams are one file
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(data[:99]) + gzip.compress(data[99:]))
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.txt", data)
    else:
        zstandard = pytest.importorskip("zstandard", reason="reading .zst needs zstandard")
        path.write_bytes(zstandard.compress(data[:99]) + zstandard.compress(data[99:]))
    return path


def content(corpus: Corpus):
    return corpus.words, corpus.counts.tolist(), corpus.train.tolist(), corpus.dev.tolist()
