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
from coterie.workers import spread

# Fetching and writing a row takes as long as computing with it for this many tokens.
ROW_IN_TOKENS = 24
# Below this many numbers to fetch, threads take longer to begin than to do it.
FEW = 1 << 18


class Part(NamedTuple):
    """One cluster at work."""

    tokens: slice  # its tokens, in the grouping's order
    span: slice  # its words, in the partition's order
    ids: Tensor  # (S,) its words
    own: Tensor  # (N, 1) the targets' columns
    x: Tensor  # (N, D)
    rows: Tensor  # (S, D)
    logits: Tensor  # (N, S), in float32 at least
    scratch: Tensor  # (S, D)


def visit(
    work: Callable[[Part], None],
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    order: Tensor,
    place: Tensor,
    starts: Tensor,
    words: Tensor,
    offsets: Tensor,
) -> None:
    """Calls `work` for every cluster that has tokens, on all cores; no two calls share a token or a word."""
    firsts, bounds = starts.tolist(), offsets.tolist()
    n_used, width = firsts[-1], hidden.shape[1]
    ordered = hidden.index_select(0, order[:n_used])
    own = (place[:n_used] - offsets[:-1].repeat_interleave(starts.diff()))[:, None]
    exact = torch.promote_types(hidden.dtype, torch.float32)
    by_place = None if bias is None else bias[words].to(exact)
    cost = {
        c: (bounds[c + 1] - bounds[c]) * (firsts[c + 1] - firsts[c] + ROW_IN_TOKENS)
        for c in range(len(bounds) - 1)
        if firsts[c + 1] > firsts[c]
    }
    most_words = max((bounds[c + 1] - bounds[c] for c in cost), default=0)

    def run(clusters: Iterator[int]) -> None:
        fetched, scratch = hidden.new_empty(2, most_words, width)
        for c in clusters:
            tokens, span = slice(firsts[c], firsts[c + 1]), slice(bounds[c], bounds[c + 1])
            n_words, ids, x = span.stop - span.start, words[span], ordered[tokens]
            if weight.dtype == hidden.dtype:
                rows = torch.index_select(weight, 0, ids, out=fetched[:n_words])
            else:
                rows = weight.index_select(0, ids).to(hidden.dtype)
            if by_place is None:
                logits = torch.mm(x, rows.T).to(exact)
            elif exact == hidden.dtype:
                logits = torch.addmm(by_place[span], x, rows.T)
            else:
                logits = torch.mm(x, rows.T).to(exact).add_(by_place[span])
            work(Part(tokens, span, ids, own[tokens], x, rows, logits, scratch[:n_words]))

    clusters = sorted(cost, key=lambda c: -cost[c])  # the longest first: no core is left with one at the end
    fetched = sum(bounds[c + 1] - bounds[c] for c in clusters) * width
    n_threads = torch.get_num_threads() if hidden.device.type == "cpu" and fetched > FEW else 1
    # A cluster with a large share of all the work is shared by the cores, the others shared out among them.
    large = sum(cost[c] * 2 * n_threads > sum(cost.values()) for c in clusters)
    with torch.no_grad():
        run(iter(clusters[:large]))
        spread(run, clusters[large:], n_threads)


class Gradients:
    """Where a pass writes the gradients of hidden (T, D), weight (V, D) and bias (V,)."""

    def __init__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, starts: Tensor, words: Tensor, offsets: Tensor
    ) -> None:
        self._ordered = hidden.new_empty(hidden.shape)  # of hidden, in the grouping's order
        self._ordered[int(starts[-1]) :] = 0
        self._weight = memory.empty_like(weight)
        self._rows = _wide(self._weight)
        # Zeros only where no cluster with tokens will write: writing everything twice takes as long as computing it.
        idle = (starts.diff() == 0).repeat_interleave(offsets.diff())  # (V,) by place
        self._rows.index_fill_(0, words[idle], 0)
        self._by_place = None if bias is None else torch.zeros_like(bias)  # of bias, in the partition's order

    def write(self, part: Part, logits: Tensor, scale: float) -> None:
        """Those of one cluster, from `scale` times those of its logits (N, S)."""
        if self._by_place is not None:
            self._by_place[part.span] = logits.sum(0).mul_(scale)
        logits = logits.to(part.x.dtype)
        hidden, weight = self._ordered[part.tokens], part.scratch
        torch.addmm(hidden, logits, part.rows, beta=0, alpha=scale, out=hidden)
        torch.addmm(weight, logits.T, part.x, beta=0, alpha=scale, out=weight)
        self._rows.index_copy_(0, part.ids, _wide(weight.to(self._weight.dtype)))

    def finish(self, order: Tensor, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of hidden, weight and bias (empty without one), each in its own order."""
        bias = self._weight.new_empty(0)
        if self._by_place is not None:
            bias = torch.empty_like(self._by_place).index_copy_(0, words, self._by_place)
        return torch.empty_like(self._ordered).index_copy_(0, order, self._ordered), self._weight, bias


def _wide(rows: Tensor) -> Tensor:
    """The same memory as fewer, larger numbers: rows are copied number by number."""
    fits = rows.device.type == "cpu" and rows.shape[1] * rows.itemsize % 16 == 0
    return rows.view(torch.complex128) if fits and rows.is_contiguous() else rows
