"""The two-level loss with ordinary PyTorch operations: one small product for each cluster that has tokens.

Nothing is padded. In the grouping's order the tokens of a cluster are a slice. The loop gathers the word vectors of one
cluster at a time into a buffer that stays in the cache. While they are there, the forward also computes the gradients
of the mean loss, so that no row is gathered twice: with gradients enabled, a forward costs a forward and a backward.
Any other gradient takes a second loop in the backward. Because the number of tokens in a cluster depends on the data,
torch.compile sees the loop as one opaque operator.

Shapes: T tokens, D width, V words, C clusters, N tokens of one cluster, S words of one cluster.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.clustering.partition import Partition
from coterie.cpu import in_large_pages, spread
from coterie.loss.by_word import ByWord
from coterie.loss.grouping import Grouping
from coterie.loss.levels import (
    LogProbs,
    Vectors,
    cluster_logits,
    in_autocast,
    project_few,
    refuse_second_derivatives,
    root_level,
    root_rows,
    root_shift,
)

# Reading and writing a row takes as long as computing with it for this many tokens.
ROW_IN_TOKENS = 24
# Below this many numbers to gather, starting threads takes longer than the work.
FEW = 1 << 18

Computed = tuple[Tensor, Tensor, Tensor]  # gradients of hidden (T, D), weight (V, D) and bias (V,; empty without one)


def two_level(hidden: Tensor, vectors: Vectors, partition: Partition, grouping: Grouping) -> tuple[LogProbs, Tensor]:
    """The same function as `reference.two_level`."""
    root, weight = root_rows(vectors, partition)
    cluster_hidden, word_hidden, root = project_few(hidden, vectors, root)
    index = grouping.order, grouping.place, grouping.starts, partition.words, partition.offsets
    operands = in_autocast(word_hidden), weight, vectors.bias, *index
    if torch.compiler.is_compiling():
        word, mean_word = _operator(*operands)
    elif not torch.is_grad_enabled():
        word, mean_word, _ = _forward(*operands)
    else:
        word, mean_word = _Eager.apply(*operands)  # type: ignore[no-untyped-call]
    logits = cluster_logits(in_autocast(cluster_hidden), root, root_shift(vectors, partition))
    cluster, mean_cluster = root_level(logits, grouping.word, partition)
    return LogProbs(cluster, word, mean_cluster, mean_word), cluster_hidden


# -- the loop over clusters ----------------------------------------------------------------------------------------


class Part(NamedTuple):
    """One cluster in the loop."""

    cluster: int
    ids: Tensor  # (S,) its words
    own: Tensor  # (N, 1) the targets' columns
    x: Tensor  # (N, D) the hidden vectors of its tokens
    rows: Tensor  # (S, D) the vectors of its words
    logits: Tensor  # (N, S), in float32 at least
    scratch: Tensor  # (S, D) a buffer


class Pass:
    """A loop over the clusters of a batch. It splits tensors at once: one slice takes as long as a small product."""

    def __init__(self, order: Tensor, place: Tensor, starts: Tensor, words: Tensor, offsets: Tensor) -> None:
        self.order, self.words = order, words
        # (C + 1,) tokens and words of each cluster. Words that stand alone come last; their tokens have no work here.
        self.counts, self.sizes = starts.diff(), offsets.diff()
        self.n_targets = int(starts[-1])
        self.counts[-1] = 0
        self._counts, self._sizes = self.counts.tolist(), self.sizes.tolist()
        self.n_used = sum(self._counts)
        self._ids = self.by_word(words)
        columns = place[: self.n_used] - offsets[:-1].repeat_interleave(self.counts)
        self._own = self.by_token(columns[:, None])

    def by_token(self, values: Tensor) -> tuple[Tensor, ...]:
        """Splits values of tokens, in the grouping's order, (T, ...), by cluster."""
        return torch.split(values[: self.n_used], self._counts)

    def by_word(self, values: Tensor) -> tuple[Tensor, ...]:
        """Splits values of words, in the partition's order, (V, ...), by cluster."""
        return torch.split(values, self._sizes)

    @torch.no_grad()
    def visit(self, work: Callable[[Part], None], hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """Calls `work` for each cluster that has tokens, on all cores; no two calls share a token or a word."""
        exact = _sum_dtype(hidden)
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

        clusters = sorted(cost, key=lambda c: -cost[c])  # the largest first, so that all cores finish together
        is_small = sum(sizes[c] for c in clusters) * hidden.shape[1] < FEW
        n_threads = 1 if is_small or hidden.device.type != "cpu" else torch.get_num_threads()
        # PyTorch spreads a product of a large cluster over the cores; the small clusters are distributed among them.
        large = sum(value * 2 * n_threads > sum(cost.values()) for value in cost.values())
        run(iter(clusters[:large]))
        spread(run, clusters[large:], n_threads)


class Gradients:
    """Buffers for `scale` times the gradients of hidden (T, D), weight (V, D) and bias (V,)."""

    def __init__(self, over: Pass, hidden: Tensor, weight: Tensor, bias: Tensor | None, scale: float = 1.0) -> None:
        self._pass, self._scale = over, scale
        self._weight = in_large_pages(weight.new_empty(weight.shape))
        self._rows = _wide(self._weight)
        self._sparse = ByWord(over, weight) if ByWord.pays(over, hidden, weight) else None
        self._kept = None if self._sparse is None else self._sparse.parts
        if self._sparse is None:
            # Zero only the rows that the loop will not write: zeroing all would take as long as the loop.
            idle = (over.counts == 0).repeat_interleave(over.sizes)  # (V,) in the partition's order
            self._rows.index_fill_(0, over.words[idle], 0)
        self._hidden = hidden.new_empty(hidden.shape)  # in the grouping's order; the bias is in the partition's
        self._hidden[over.n_used :] = 0
        self._hiddens = over.by_token(self._hidden)
        self._bias = None if bias is None else bias.new_zeros(bias.shape, dtype=_sum_dtype(bias))
        self._biases = None if self._bias is None else over.by_word(self._bias)

    def write(self, part: Part, logits: Tensor) -> None:
        """Writes the gradients of one cluster, given those of its logits (N, S)."""
        if self._biases is not None:
            torch.sum(logits, 0, dtype=self._biases[0].dtype, out=self._biases[part.cluster])
        logits = logits.to(part.x.dtype)
        hidden, weight = self._hiddens[part.cluster], part.scratch
        torch.addmm(hidden, logits, part.rows, beta=0, alpha=self._scale, out=hidden)
        if self._kept is not None:
            self._kept[part.cluster].view(logits.shape).copy_(logits)
            return
        torch.addmm(weight, logits.T, part.x, beta=0, alpha=self._scale, out=weight)
        self._rows.index_copy_(0, part.ids, _wide(weight.to(self._weight.dtype)))

    def finish(self, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of hidden, weight and bias (empty without one), in the order and dtype of their tensors."""
        if self._sparse is not None:
            self._sparse.multiply(self._pass.hidden, self._scale, self._weight)
        hidden = torch.empty_like(self._hidden).index_copy_(0, self._pass.order, self._hidden)
        if self._bias is None or bias is None:
            return hidden, self._weight, self._weight.new_empty(0)
        by_place = self._bias.mul_(self._scale).to(bias.dtype)
        return hidden, self._weight, torch.empty_like(by_place).index_copy_(0, self._pass.words, by_place)


def _sum_dtype(values: Tensor) -> torch.dtype:
    return torch.promote_types(values.dtype, torch.float32)


def _wide(rows: Tensor) -> Tensor:
    """A view of rows as fewer, larger numbers, because index_copy_ copies number by number."""
    fits = rows.device.type == "cpu" and rows.shape[1] * rows.itemsize % 16 == 0
    return rows.view(torch.complex128) if fits and rows.is_contiguous() else rows


# -- the word level ------------------------------------------------------------------------------------------------


def _forward(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    order: Tensor,
    place: Tensor,
    starts: Tensor,
    words: Tensor,
    offsets: Tensor,
    ahead: bool = False,
) -> tuple[Tensor, Tensor, Computed | None]:
    """log P(target) and the mean of log P over the words of its cluster, each (T,).

    With `ahead`, also the gradients of the mean loss, -log P(target) averaged over the tokens.
    """
    over = Pass(order, place, starts, words, offsets)
    gradients = Gradients(over, hidden, weight, bias, 1 / max(over.n_targets, 1)) if ahead else None
    log_prob, total = (result.zero_()[:, None] for result in _results(hidden))  # in the grouping's order until the end
    log_probs, totals, minus_ones = (over.by_token(part) for part in (log_prob, total, torch.full_like(total, -1)))

    def work(part: Part) -> None:
        log_p = part.logits.log_softmax(1)
        torch.gather(log_p, 1, part.own, out=log_probs[part.cluster])
        torch.sum(log_p, 1, keepdim=True, out=totals[part.cluster])
        if gradients is not None:
            # The gradient of -log P is the probability, minus 1 at the target.
            gradients.write(part, log_p.exp_().scatter_add_(1, part.own, minus_ones[part.cluster]))

    over.visit(work, hidden, weight, bias)
    total[: over.n_used, 0] /= over.sizes.repeat_interleave(over.counts)
    in_turn, mean = _results(hidden)
    in_turn.index_copy_(0, order, log_prob.squeeze(1))
    mean.index_copy_(0, order, total.squeeze(1))
    return in_turn, mean, None if gradients is None else gradients.finish(bias)


def _results(hidden: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    return hidden.new_empty(hidden.shape[0], dtype=dtype), hidden.new_empty(hidden.shape[0], dtype=dtype)


def _backward(
    grad: Tensor | None,
    grad_mean: Tensor | None,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    order: Tensor,
    place: Tensor,
    starts: Tensor,
    words: Tensor,
    offsets: Tensor,
) -> Computed:
    """The gradients, given those of both results."""
    over = Pass(order, place, starts, words, offsets)
    gradients = Gradients(over, hidden, weight, bias)
    zero = _results(hidden)[0].zero_()
    asked = over.by_token((zero if grad is None else grad)[order, None])
    asked_mean = over.by_token((zero if grad_mean is None else grad_mean)[order, None])

    def work(part: Part) -> None:
        g, g_mean = asked[part.cluster], asked_mean[part.cluster]  # (N, 1)
        g_logits = g_mean / part.ids.numel() - (g + g_mean) * part.logits.softmax(1)
        gradients.write(part, g_logits.scatter_add_(1, part.own, g.to(g_logits.dtype)))

    over.visit(work, hidden, weight, bias)
    return gradients.finish(bias)


class _Eager(torch.autograd.Function):
    """The loop as an autograd function, which returns gradients computed ahead without a copy."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, *index: Tensor) -> tuple[Tensor, Tensor]:
        # In float16, gradients of a mean would underflow before the loss is scaled.
        wanted = any(ctx.needs_input_grad) and hidden.dtype != torch.float16
        order, place, starts, words, offsets = index
        log_prob, mean, ctx.ahead = _forward(hidden, weight, bias, order, place, starts, words, offsets, wanted)
        ctx.save_for_backward(hidden, weight, bias, *index)
        ctx.set_materialize_grads(False)
        return log_prob, mean

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_mean: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        # Returned only once: after the first backward, a parameter's `.grad` may own this memory.
        gradients, ctx.ahead = ctx.ahead, None
        _, _, bias, order, _, starts, *_ = ctx.saved_tensors
        factor = None if gradients is None else _factor(grad, grad_mean, order, starts)
        if factor is None:
            gradients = _backward(grad, grad_mean, *ctx.saved_tensors)
        elif factor != 1:
            for gradient in gradients:
                gradient.mul_(factor)
        return gradients[0], gradients[1], None if bias is None else gradients[2], *(None,) * 5


def _factor(grad: Tensor | None, grad_mean: Tensor | None, order: Tensor, starts: Tensor) -> float | None:
    """The factor from the gradients computed ahead to those that are needed; None if no factor gives them."""
    n_used = int(starts[-1])
    if n_used == 0 or grad is None or (grad_mean is not None and bool(grad_mean.any())):
        return None
    asked = grad[order[:n_used]]
    if bool((asked != asked[0]).any()):
        return None
    factor = float(asked[0]) * -n_used
    # -1/n times -n is 1 except for rounding, which is not worth another pass over all gradients.
    return 1.0 if abs(factor - 1) < 1e-6 and grad.dtype == torch.float32 else factor


@torch.library.custom_op("coterie::grouped", mutates_args=())
def _operator(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    order: Tensor,
    place: Tensor,
    starts: Tensor,
    words: Tensor,
    offsets: Tensor,
) -> tuple[Tensor, Tensor]:
    return _forward(hidden, weight, bias, order, place, starts, words, offsets)[:2]


@_operator.register_fake
def _(hidden: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
    return _results(hidden)


_backward_operator = torch.library.custom_op("coterie::grouped_backward", _backward, mutates_args=())


@_backward_operator.register_fake
def _(
    grad: Tensor | None,
    grad_mean: Tensor | None,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *rest: Tensor,
) -> Computed:
    grad_bias = weight.new_empty(0) if bias is None else bias.new_empty(bias.shape)
    return hidden.new_empty(hidden.shape), weight.new_empty(weight.shape), grad_bias


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, grad: Tensor, grad_mean: Tensor) -> tuple[Tensor | None, ...]:
    grad_hidden, grad_weight, grad_bias = _backward_operator(grad, grad_mean, *ctx.saved_tensors)
    return grad_hidden, grad_weight, None if ctx.saved_tensors[2] is None else grad_bias, *(None,) * 5


_operator.register_autograd(_differentiate, setup_context=_setup_context)
