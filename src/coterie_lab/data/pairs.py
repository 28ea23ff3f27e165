"""Prepared pairs: a vocabulary for both sides, and the ids of each side in memory-mapped arrays on disk.

Each side is one long array of ids with the ends of its rows. Every title ends with `<eos>`, so that the concatenated
titles, or sentences and titles in turn, are also a text for a language model.

Shapes: N pairs, V words, T words of a side.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie_lab.data.arrays import dtype_of, mapped
from coterie_lab.data.corpus import Corpus as Text
from coterie_lab.data.folder import EOS, VOCABULARY, opened

PARTS = ("train", "valid", "test")
SIDES = ("article", "title")
FORMAT = "coterie-pairs"
ENDS = np.dtype(np.int64)
BLOCK = 1 << 16  # pairs to add to a text at a time
Reading = Literal["both", "titles"]  # what a language model reads of the pairs


@dataclass(frozen=True)
class Side:
    """Concatenated rows of words."""

    ids: NDArray[Any]  # (T,)
    ends: NDArray[np.int64]  # (N,) where each row ends

    def __len__(self) -> int:
        return len(self.ends)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Where each row starts, (N,)."""
        return np.concatenate(([0], self.ends[:-1]))

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """The number of words of each row, (N,)."""
        return self.ends - self.starts

    def padded(self, rows: NDArray[np.int64], width: int, padding: int | NDArray[np.int64]) -> NDArray[np.int64]:
        """Some rows side by side, (rows, width), filled up with one number or with (rows, width) of them; what is
        longer than the width is cut."""
        at = self.starts[rows, None] + np.arange(width)
        inside = np.arange(width) < self.lengths[rows, None]
        words = self.ids[np.where(inside, at, 0)].astype(np.int64)
        return np.where(inside, words, padding)


@dataclass(frozen=True)
class Part:
    """Sentences and their titles; row i of both is a pair."""

    article: Side
    title: Side  # each row ends with <eos>

    def __len__(self) -> int:
        return len(self.article)


@dataclass(frozen=True)
class Pairs:
    """Prepared pairs: the vocabulary, the counts in the training titles, and the parts."""

    path: Path
    words: list[str]
    counts: Tensor  # (V,) int64
    parts: dict[str, Part]
    source: dict[str, Any]  # the files and settings it was prepared from, and what was left out

    @classmethod
    def open(cls, path: str | Path) -> "Pairs":
        """Opens a folder that `prepare` wrote; raises if it is incomplete."""
        path = Path(path)
        with opened(path, FORMAT, "coterie summarize prepare") as saved:
            words = saved["words"]
            if EOS not in words:
                raise ValueError(f"{VOCABULARY} has no {EOS}")
            parts = {part: _part(path, part, sizes, len(words)) for part, sizes in saved["parts"].items()}
            return cls(path, words, torch.tensor(saved["counts"]), parts, saved["source"])

    @property
    def n_words(self) -> int:
        """V."""
        return len(self.words)

    @cached_property
    def eos(self) -> int:
        """The word that ends every title, and precedes its first word as input."""
        return self.words.index(EOS)

    def part(self, name: str) -> Part:
        """A part by name; raises if there is none."""
        if name not in self.parts:
            raise ValueError(f"{self.path} has no part {name!r}; it has {', '.join(self.parts)}")
        return self.parts[name]

    def text(self, part: str, side: str) -> list[str]:
        """The rows of a part as text, including unknown words; the training part has no such text."""
        return (self.path / text_name(part, side)).read_text(encoding="utf-8").splitlines()

    def language(self, reading: Reading) -> Text:
        """The text for a language model of the same vocabulary: titles, or each sentence followed by its title."""
        parts = self.part("train"), self.part("valid")
        if reading == "titles":
            (train, valid), counts = (part.title.ids for part in parts), self.counts
        else:
            train, valid = (_in_turn(part, self.eos) for part in parts)
            counts = torch.from_numpy(np.bincount(train, minlength=self.n_words))
        return Text(self.path, self.words, counts, train, valid, None, self.source)


def _in_turn(part: Part, eos: int) -> NDArray[Any]:
    """Each sentence, `<eos>` and its title, pair by pair: (T,)."""
    article, title = part.article, part.title
    text = np.full(len(article.ids) + len(part) + len(title.ids), eos, dtype=article.ids.dtype)
    for begin in range(0, len(part), BLOCK):  # indices take many times the memory of the ids
        end = min(begin + BLOCK, len(part))
        some, pair = slice(begin, end), np.arange(begin, end)  # one <eos> for each earlier sentence
        # The words of one side move by the number of words of the other side before them.
        for side, shift in ((article, title.starts[some] + pair), (title, article.ends[some] + pair + 1)):
            ids = side.ids[side.starts[begin] : side.ends[end - 1]]
            text[side.starts[begin] + np.arange(len(ids)) + np.repeat(shift, side.lengths[some])] = ids
    return text


def text_name(part: str, side: str) -> str:
    return f"{part}.{side}.txt"


def array_names(part: str, side: str) -> tuple[str, str]:
    """The names of the arrays of ids and of row ends."""
    return f"{part}.{side}.npy", f"{part}.{side}.ends.npy"


def _part(path: Path, part: str, sizes: dict[str, int], n_words: int) -> Part:
    sides = []
    for side in SIDES:
        ids, ends = array_names(part, side)
        sides.append(
            Side(mapped(path / ids, sizes[side], dtype_of(n_words)), mapped(path / ends, sizes["pairs"], ENDS))
        )
        if sides[-1].ends[-1] != sizes[side]:
            raise ValueError(f"{ends} ends at {sides[-1].ends[-1]}, {ids} at {sizes[side]}")
    return Part(*sides)
