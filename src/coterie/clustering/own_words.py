"""Which words stand alone: each is a cluster of one, beside the clusters of the others.

A few hundred of the most frequent words make up most of a text. In clusters they would outweigh their companions, and
each time one of them moved, much of the text would be predicted by another cluster.

Shapes: V words, C clusters, N words that stand alone.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

# A word stands alone if it occurs more than 1/16 as often as a cluster on average, and more than four times as often
# as a word.
OF_CLUSTER, OF_WORD = 1 / 16, 4
# On a GPU the columns of the root cost as much as whole tiles of so many; the rule fills the last one or leaves it out.
TILE = 64
# With fewer occurrences than this per word, frequencies are mostly chance, and no rule finds any.
ENOUGH = 1
# If all such words together are less of the text than this, none stands alone.
LEAST_MASS = 0.2


def choose(counts: Tensor, n_clusters: int, own_words: int | Tensor | Sequence[int] | None) -> Tensor:
    """The words that stand alone, ascending: those given, as many of the most frequent, or, for None, by a rule.

    >>> choose(torch.tensor([50, 40, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]), n_clusters=3, own_words=None)
    tensor([0, 1])
    """
    n_words = counts.numel()
    if own_words is not None and not isinstance(own_words, int):
        return torch.as_tensor(own_words, dtype=torch.int64, device=counts.device).sort().values
    order = counts.argsort(descending=True, stable=True)
    if own_words is not None:
        return order[:own_words].sort().values
    if not enough(counts):
        return order[:0]
    share = counts.double() / counts.sum()
    frequent = (share > OF_CLUSTER / n_clusters) & (share > OF_WORD / n_words)
    if float(share[frequent].sum()) < LEAST_MASS:
        return order[:0]
    n_own = int(frequent.sum())
    if n_own > TILE and n_clusters % 8 == 0:
        n_own -= (n_clusters + n_own) % TILE
    return order[:n_own].sort().values


def enough(counts: Tensor) -> bool:
    """Whether the counts (V,) say which words are frequent."""
    return int(counts.sum()) >= ENOUGH * counts.numel()


def places(n_own: int | None, n_clusters: int) -> int:
    """N: the columns to keep for words that stand alone; None: for a rule that has no counts yet, one per cluster.

    With the clusters a multiple of 8 together, because a GPU takes four times as long for odd widths.
    """
    n_own = n_clusters if n_own is None else n_own
    return n_own if n_clusters % 8 else -(-n_own // 8) * 8
