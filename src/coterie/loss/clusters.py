"""A pass over the clusters that have tokens: one small product each with the rows of its words, nothing padded.

Tokens lie in the grouping's order, so that those of a cluster are a slice. The rows of one cluster are fetched at a
time, to memory that stays in the cache, and its gradients are computed there before they go where they belong.

Shapes: T tokens, D width, V words, C clusters, N tokens of one cluster, S words of one cluster.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from coterie import memory
from coterie.cpu import spread
from coterie.loss.by_word import ByWord

# Fetching and writing a row takes as long as computing with it for this many tokens.
ROW_IN_TOKENS = 24
# Below this many numbers to fetch, threads take longer to begin than to do it.
FEW = 1 << 18


class Part(NamedTuple):
    """One cluster at work."""

    cluster: int
    ids: Tensor  # (S,) its words
    own: Tensor  # (N, 1) the targets' columns
    x: Tensor  # (N, D)
    rows: Tensor  # (S, D)
    logits: Tensor  # (N, S), in float32 at least
    scratch: Tensor  # (S, D)


class Pass:
    """A batch cut into clusters, all at once: cutting one slice from Python takes as long as a small product."""

    def __init__(self, order: Tensor, place: Tensor, starts: Tensor, words: Tensor, offsets: Tensor) -> None:
        self.order, self.words = order, words
        self.counts, self.sizes = starts.diff(), offsets.diff()  # (C,) tokens and words of each cluster
        self._counts, self._sizes = self.counts.tolist(), self.sizes.tolist()
        self.n_used = sum(self._counts)
        self._ids = self.by_word(words)
        columns = place[: self.n_used] - offsets[:-1].repeat_interleave(self.counts)
        self._own = self.by_token(columns[:, None])

    def by_token(self, values: Tensor) -> tuple[Tensor, ...]:
        """Cuts something of the tokens, in the grouping's order, (T, ...)."""
        return torch.split(values[: self.n_used], self._counts)

    def by_word(self, values: Tensor) -> tuple[Tensor, ...]:
        """Cuts something of the words, in the partition's order, (V, ...)."""
        return torch.split(values, self._sizes)

    @torch.no_grad()
    def visit(self, work: Callable[[Part], None], hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """Calls `work` for every cluster that has tokens, on all cores; no two calls share a token or a word."""
        exact = _exact(hidden)
        self.hidden = hidden.index_select(0, self.order)  # (T, D) in the grouping's order
        xs = self.by_token(self.hidden)
        biases = None if bias is None else self.by_word(bias[self.words].to(exact))
        counts, sizes = self._counts, self._sizes
        cost = {c: sizes[c] * (n + ROW_IN_TOKENS) for c, n in enumerate(counts) if n}
        most_words = max((sizes[c] for c in cost), default=0)

        def run(clusters: Iterator[int]) -> None:
            fetched, scratch = hidden.new_empty(2, most_words, hidden.shape[1])
            for c in clusters:
                ids, x, n_words = self._ids[c], xs[c], sizes[c]
                if weight.dtype == hidden.dtype:
                    rows = torch.index_select(weight, 0, ids, out=fetched[:n_words])
                else:
                    rows = weight.index_select(0, ids).to(hidden.dtype)
                if biases is not None and exact == hidden.dtype:
                    logits = torch.addmm(biases[c], x, rows.T)
                else:
                    logits = torch.mm(x, rows.T).to(exact)
                    if biases is not None:
                        logits += biases[c]
                work(Part(c, ids, self._own[c], x, rows, logits, scratch[:n_words]))

        clusters = sorted(cost, key=lambda c: -cost[c])  # the longest first: no core is left with one at the end
        is_small = sum(sizes[c] for c in clusters) * hidden.shape[1] < FEW
        n_threads = 1 if is_small or hidden.device.type != "cpu" else torch.get_num_threads()
        # A cluster with a large share of all the work is shared by the cores, the others are shared out among them.
        large = sum(value * 2 * n_threads > sum(cost.values()) for value in cost.values())
        run(iter(clusters[:large]))
        spread(run, clusters[large:], n_threads)


class Gradients:
    """Where a pass writes `scale` times the gradients of hidden (T, D), weight (V, D) and bias (V,)."""

    def __init__(self, over: Pass, hidden: Tensor, weight: Tensor, bias: Tensor | None, scale: float = 1.0) -> None:
        self._pass, self._scale = over, scale
        self._weight = memory.empty_like(weight)
        self._rows = _wide(self._weight)
        self._sparse = ByWord(over, weight) if ByWord.pays(over, hidden, weight) else None
        if self._sparse is None:
            # Zeros only where no cluster with tokens will write: writing all twice takes as long as computing it.
            idle = (over.counts == 0).repeat_interleave(over.sizes)  # (V,) in the partition's order
            self._rows.index_fill_(0, over.words[idle], 0)
        self._hidden = hidden.new_empty(hidden.shape)  # in the grouping's order, as the bias is in the partition's
        self._hidden[over.n_used :] = 0
        self._hiddens = over.by_token(self._hidden)
        self._bias = None if bias is None else bias.new_zeros(bias.shape, dtype=_exact(bias))
        self._biases = None if self._bias is None else over.by_word(self._bias)

    def write(self, part: Part, logits: Tensor) -> None:
        """Those of one cluster, from those of its logits (N, S)."""
        if self._biases is not None:
            torch.sum(logits, 0, dtype=self._biases[0].dtype, out=self._biases[part.cluster])
        logits = logits.to(part.x.dtype)
        hidden, weight = self._hiddens[part.cluster], part.scratch
        torch.addmm(hidden, logits, part.rows, beta=0, alpha=self._scale, out=hidden)
        if self._sparse is not None:
            self._sparse.keep(part.cluster, logits)
            return
        torch.addmm(weight, logits.T, part.x, beta=0, alpha=self._scale, out=weight)
        self._rows.index_copy_(0, part.ids, _wide(weight.to(self._weight.dtype)))

    def finish(self, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Of hidden, weight and bias (empty without one), each in its own order and dtype."""
        if self._sparse is not None:
            self._sparse.multiply(self._pass.hidden, self._scale, self._weight)
        hidden = torch.empty_like(self._hidden).index_copy_(0, self._pass.order, self._hidden)
        if self._bias is None or bias is None:
            return hidden, self._weight, self._weight.new_empty(0)
        by_place = self._bias.mul_(self._scale).to(bias.dtype)
        return hidden, self._weight, torch.empty_like(by_place).index_copy_(0, self._pass.words, by_place)


def _exact(values: Tensor) -> torch.dtype:
    return torch.promote_types(values.dtype, torch.float32)


def _wide(rows: Tensor) -> Tensor:
    """The same memory as fewer, larger numbers: rows are copied number by number."""
    fits = rows.device.type == "cpu" and rows.shape[1] * rows.itemsize % 16 == 0
    return rows.view(torch.complex128) if fits and rows.is_contiguous() else rows
