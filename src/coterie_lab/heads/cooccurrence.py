"""Counts pairs of neighbouring words in a text.

Shapes: N words of text, V words, P different pairs.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Pairs:
    """The distinct pairs of neighbours, sorted by the second word, then by the first."""

    first: Tensor  # (P,)
    second: Tensor  # (P,)
    count: Tensor  # (P,)


def neighbours(text: NDArray[Any], n_words: int) -> Pairs:
    """The pairs of neighbouring words in the text (N,)."""
    ids = np.asarray(text, dtype=np.int64)
    if ids.size and not (int(ids.min()) >= 0 and int(ids.max()) < n_words):
        raise ValueError(f"the text's words must be from 0 to {n_words - 1}; got {ids.min()} to {ids.max()}")
    keys, count = np.unique(ids[1:] * n_words + ids[:-1], return_counts=True)  # (P,)
    second, first = np.divmod(keys, n_words)
    return Pairs(torch.from_numpy(first), torch.from_numpy(second), torch.from_numpy(count))
