"""Brown clusters: words whose neighbours are in the same clusters (Brown et al. 1992; Martin et al. 1998).

The model predicts the cluster of the next word from that of the previous one, and the word from its cluster. Let
n(c, d) be how often a word of cluster d follows one of cluster c, and f(x) = x log x. Then a text's log-probability is,
up to terms that do not depend on the clusters,

    Σ f(n(c, d)) - Σ f(L(c)) - Σ f(R(d)),    L and R: the sums of n's rows and of its columns.

The exchange algorithm takes one word at a time out of its cluster and moves it to where this sum is largest.

Shapes: N words of text, V words, C clusters, P different pairs of neighbours, J clusters next to a word.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, from_numpy

from coterie.checks import cluster_capacity
from coterie.clustering.partition import Partition
from coterie_lab.heads.cooccurrence import neighbours

Floats = NDArray[np.float64]

SWEEPS = 20  # the most sweeps
# A sweep that moves a smaller share of the words is the last. The share counts words, not occurrences: otherwise a
# single frequent word that moves back and forth would outweigh all others.
SETTLED = 0.005
TIE = 1e-12  # relative to f(all pairs); well above rounding errors, far below what a move gains


def brown_clusters(text: NDArray[Any], counts: Tensor, n_clusters: int, gamma: float = 1.5) -> Partition:
    """Clusters words by their neighbours in the text (N,); `counts` (V,): frequent words choose first.

    At first the C most frequent words have a cluster each, and the others are dealt out to these in turn. Words that
    are not in the text keep that cluster, as no other is better.
    """
    n_words = counts.numel()
    capacity = cluster_capacity(n_words, n_clusters, gamma)
    if len(text) < 2:
        raise ValueError(f"Brown clusters need a text of at least two words, as word numbers; got {len(text)}")
    order = counts.argsort(descending=True, stable=True).numpy()  # (V,)
    cluster_of = np.empty(n_words, dtype=np.int64)
    cluster_of[order] = np.arange(n_words) % n_clusters  # within the capacity: it is at least V/C
    exchange = _Exchange(text, cluster_of, n_clusters, capacity)
    for _ in range(SWEEPS):
        if exchange.sweep(order) < SETTLED * n_words:
            break
    return Partition(from_numpy(exchange.cluster_of), n_clusters, capacity)


class _Exchange:
    """The clusters of words, and how often clusters follow each other."""

    def __init__(self, text: NDArray[Any], cluster_of: NDArray[np.int64], n_clusters: int, capacity: int) -> None:
        """`text` (N,), `cluster_of` (V,)."""
        n_words = len(cluster_of)
        self.capacity = capacity
        self.size = np.bincount(cluster_of, minlength=n_clusters)  # (C,)
        # Each cluster has two rows: counts of the words that it precedes, and of those that it follows.
        self.row_of = np.concatenate((cluster_of, cluster_of + n_clusters))  # (2V,) v stands before; V + v after
        self.cluster_of = self.row_of[:n_words]

        pairs = neighbours(text, n_words)
        first, second, count = (np.asarray(pairs.first), np.asarray(pairs.second), np.asarray(pairs.count, np.float64))
        self.follows = np.zeros((2 * n_clusters, n_clusters))  # (2C, C) n, and below it n with rows and columns swapped
        np.add.at(self.follows, (self.row_of[first], cluster_of[second]), count)
        self.follows[n_clusters:] = self.follows[:n_clusters].T
        self.weight = _f(self.follows)
        self.total = self.follows.reshape(2, n_clusters, n_clusters).sum(1)  # (2, C) R, L
        self.slack = TIE * float(_f(count.sum()))

        itself = first == second
        self.own = np.zeros(n_words)  # (V,) how often a word follows itself: this goes along with it
        self.own[first[itself]] = count[itself]
        first, second, count = first[~itself], second[~itself], count[~itself]
        # (2P,) The neighbours of each word, word by word: those before it and those after it.
        word, beside = np.concatenate((second, first)), np.concatenate((first, second + n_words))
        by_word = word.argsort(kind="stable")
        self.beside, self.times = beside[by_word], np.tile(count, 2)[by_word]
        self.start = np.searchsorted(word[by_word], np.arange(n_words + 1))  # (V + 1,)

    def sweep(self, order: NDArray[np.int64]) -> int:
        """Every word chooses once, in this order (V,); returns how many moved."""
        return sum(self._choose(word) for word in order.tolist())

    def _choose(self, word: int) -> bool:
        """Moves a word to its best cluster; returns whether that is a new one."""
        company = self._company(word)  # (2C,)
        own = float(self.own[word])
        present = int(self.cluster_of[word])
        self._add(-company, -own, present)
        self.size[present] -= 1
        gain = self._gain(company, own)  # (C,)
        gain[self.size >= self.capacity] = -np.inf
        good = gain >= gain.max() - self.slack
        chosen = present if good[present] else int(good.argmax())
        self._add(company, own, chosen)
        self.size[chosen] += 1
        self.row_of[word] = chosen
        self.row_of[word + len(self.own)] = chosen + len(self.size)
        return chosen != present

    def _company(self, word: int) -> Floats:
        """How often the words of each cluster precede a word, then how often they follow it, (2C,)."""
        here = slice(self.start[word], self.start[word + 1])
        times = np.bincount(self.row_of[self.beside[here]], self.times[here], len(self.follows))
        return times.astype(np.float64, copy=False)  # float64 already; the type checker does not know

    def _gain(self, company: Floats, own: float) -> Floats:
        """The increase of the sum if a word in no cluster joined each cluster, (C,)."""
        near = company.nonzero()[0]  # (J,) the terms that change
        joined = self.follows[near]
        joined += company[near, None]  # (J, C)
        gain: Floats = np.einsum("jc,jc->c", joined, np.log(joined)) - self.weight[near].sum(0)
        # n(c, c) is a single term, and grows by the counts before, after and of the word with itself at once.
        before, after = company.reshape(2, -1)
        within = self.follows.diagonal()  # (C,)
        gain += _f(within + before + after + own) + _f(within) - _f(within + before) - _f(within + after)
        total = self.total + (company.reshape(2, -1).sum(1) + own)[:, None]  # (2, C)
        gain -= (_f(total) - _f(self.total)).sum(0)
        return gain

    def _add(self, company: Floats, own: float, cluster: int) -> None:
        """Adds a word's counts to this cluster, or removes them if they are given as negative numbers."""
        before, after = company.reshape(2, -1)
        mirrored = cluster + len(before)
        self.follows[:, cluster] += company
        self.follows[cluster] += after
        self.follows[mirrored] += before
        self.follows[[cluster, mirrored], cluster] += own
        self.weight[:, cluster] = _f(self.follows[:, cluster])
        for row in (cluster, mirrored):
            self.weight[row] = _f(self.follows[row])
        self.total[:, cluster] += company.reshape(2, -1).sum(1) + own


def _f(x: Floats) -> Floats:
    """x log x, of whole numbers."""
    return x * np.log(np.maximum(x, 1))
