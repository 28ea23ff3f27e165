"""Batches of pairs in few shapes, because a CUDA graph is recorded for each shape.

Shapes are a grid of a few lengths for each side, and a bucket holds the pairs that fit a shape. Each pair is in one
batch per epoch; the last batch of a bucket is padded with rows that are ignored.

Shapes: N pairs, B pairs of a batch, S words of a sentence, L words of a title with its end.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie_lab.data.pairs import Part
from coterie_lab.data.streams import IGNORED, to_device

ARTICLE_QUANTILES = (0.3, 0.6, 0.9, 1.0)
TITLE_QUANTILES = (0.6, 0.95, 1.0)
STEP = 4  # lengths are multiples of this


class Batch(NamedTuple):
    """The input of a model: sentences, their lengths, and the titles to predict."""

    article: Tensor  # (B, S)
    length: Tensor  # (B,) words of each sentence, at least 1
    title: Tensor  # (B, L) with its end; IGNORED after it

    def to(self, device: torch.device) -> "Batch":
        """The batch on a device."""
        return Batch(*to_device(self, device))


class Batches:
    """The batches of a part, numbered, so that a run can resume at any of them."""

    def __init__(
        self, part: Part, size: int, seed: int, rank: int = 0, world: int = 1, longest: int | None = None
    ) -> None:
        """Process `rank` of `world` reads its share of each batch; `longest`: the length to which sentences are cut."""
        if size % world:
            raise ValueError(f"a batch of {size} pairs cannot be shared evenly by {world} processes")
        self.part, self.size, self.seed, self.rank, self.world = part, size, seed, rank, world
        articles = part.article.lengths if longest is None else np.minimum(part.article.lengths, longest)
        self.widths = edges(articles, ARTICLE_QUANTILES), edges(part.title.lengths, TITLE_QUANTILES)
        column, row = (
            np.searchsorted(np.array(widths), lengths)
            for widths, lengths in zip(self.widths, (articles, part.title.lengths), strict=True)
        )
        bucket = column * len(self.widths[1]) + row  # (N,)
        self.buckets = {int(number): np.flatnonzero(bucket == number) for number in np.unique(bucket)}
        self.steps = sum(-(-len(rows) // size) for rows in self.buckets.values())
        self._planned: tuple[int, list[tuple[int, NDArray[np.int64]]]] | None = None

    def batch(self, step: int) -> Batch:
        """The batch of an update, counted over all epochs; each epoch shuffles the pairs anew."""
        epoch, at = divmod(step, self.steps)
        if self._planned is None or self._planned[0] != epoch:
            self._planned = epoch, self._plan(np.random.default_rng((self.seed, epoch)))
        return self._build(*self._planned[1][at])

    def in_order(self) -> Iterator[Batch]:
        """Every pair once, in the order of the data."""
        for bucket, rows in self._plan(None):
            yield self._build(bucket, rows)

    def _plan(self, luck: np.random.Generator | None) -> list[tuple[int, NDArray[np.int64]]]:
        plan = []
        for bucket, rows in self.buckets.items():
            dealt = rows if luck is None else luck.permutation(rows)
            plan += [(bucket, dealt[begin : begin + self.size]) for begin in range(0, len(rows), self.size)]
        order = range(len(plan)) if luck is None else luck.permutation(len(plan))
        return [plan[n] for n in order]

    def _build(self, bucket: int, rows: NDArray[np.int64]) -> Batch:
        wide, long = divmod(bucket, len(self.widths[1]))
        width, length = self.widths[0][wide], self.widths[1][long]
        rows = rows[self.rank :: self.world]
        share = self.size // self.world
        # Pad with words of the text: thousands of one padding word would make its gradient a long sum.
        article = np.resize(self.part.article.ids[: share * width], (share, width)).astype(np.int64)
        lengths = np.ones(share, np.int64)
        title = np.full((share, length), IGNORED, np.int64)
        article[: len(rows)] = self.part.article.padded(rows, width, article[: len(rows)])
        lengths[: len(rows)] = np.minimum(self.part.article.lengths[rows], width)
        title[: len(rows)] = self.part.title.padded(rows, length, IGNORED)
        return Batch(*(torch.from_numpy(part) for part in (article, lengths, title)))


def edges(lengths: NDArray[np.int64], quantiles: tuple[float, ...]) -> list[int]:
    """A few lengths to pad to: quantiles of the row lengths, and their maximum, rounded up to multiples of STEP."""
    found = np.quantile(lengths, quantiles)
    return sorted({int(-(-value // STEP) * STEP) for value in found})
