"""The two-level loss with ordinary PyTorch operations: one small product per cluster that has tokens.

Nothing is padded and only the rows of one cluster are copied at a time. While they are at hand, the forward also
computes the gradients that a loss averaged over all tokens will ask for, so that no row is fetched twice; any other
gradient is computed in a pass of its own. How many tokens a cluster has depends on the data: to the compiler the loop
is one opaque operator.

Shapes: T tokens, D width, V words, C clusters, N tokens of one cluster, S words of one cluster.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from coterie.grouping import Grouping
from coterie.loss.levels import LogProbs, cluster_level, cluster_logits, in_autocast, refuse_second_derivatives, split
from coterie.partition import Partition

Gradients = tuple[Tensor, Tensor, Tensor]  # of hidden (T, D), weight (V, D) and bias (V,; empty without one)


def two_level(
    hidden: Tensor,
    cluster_weight: Tensor,
    cluster_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    partition: Partition,
    grouping: Grouping,
) -> LogProbs:
    """As `reference.two_level`."""
    cluster_hidden, word_hidden = split(in_autocast(hidden), weight.shape[1])
    index = (*grouping, partition.words, partition.offsets)
    if torch.compiler.is_compiling():
        word, mean_word, _ = _operator(word_hidden, weight, bias, *index)
    elif not torch.is_grad_enabled():
        word, mean_word, _ = _forward(word_hidden, weight, bias, *index)
    else:
        word, mean_word = _Eager.apply(word_hidden, weight, bias, *index)  # type: ignore[no-untyped-call]
    logits = cluster_logits(cluster_hidden, cluster_weight, cluster_bias)
    cluster, mean_cluster = cluster_level(logits, target, partition)
    return LogProbs(cluster, word, mean_cluster, mean_word)


def _groups(starts: Tensor, offsets: Tensor) -> Iterator[tuple[slice, slice]]:
    """For every cluster that has tokens: its tokens in the grouping's order, and its words in the partition's."""
    firsts, bounds = starts.tolist(), offsets.tolist()
    for c in range(len(bounds) - 1):
        if firsts[c + 1] > firsts[c]:
            yield slice(firsts[c], firsts[c + 1]), slice(bounds[c], bounds[c + 1])


def _logits(hidden: Tensor, rows: Tensor, bias: Tensor | None, words: Tensor) -> Tensor:
    """(N, D), (S, D) → (N, S), in float32 at least."""
    logits = hidden @ rows.T
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits if bias is None else logits + bias[words]


def _forward(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    order: Tensor,
    place: Tensor,
    starts: Tensor,
    words: Tensor,
    offsets: Tensor,
    ahead: Gradients | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """log P(target), mean log P and log Z of the target's cluster, each (T,).

    Writes to `ahead` the gradients of the negative mean of log P(target).
    """
    log_prob, mean, log_total = (_result(hidden).zero_() for _ in range(3))
    ordered = hidden[order]
    if ahead is not None:
        _zero_the_rest(ahead, order, starts, words, offsets)
    each = -1 / max(int(starts[-1]), 1)
    for tokens, span in _groups(starts, offsets):
        ids, here, x = words[span], order[tokens], ordered[tokens]
        rows = weight.index_select(0, ids).to(hidden.dtype)
        logits = _logits(x, rows, bias, ids)
        total = logits.logsumexp(1)
        own = (place[tokens] - span.start)[:, None]  # (N, 1) the target's column
        log_total[here] = total
        log_prob[here] = logits.gather(1, own).squeeze(1) - total
        mean[here] = logits.mean(1) - total
        if ahead is not None:
            # each · (1 at the target - probability), in the logits' own memory.
            g_logits = logits.sub_(total[:, None]).exp_().mul_(-each)
            g_logits.scatter_add_(1, own, g_logits.new_full(own.shape, each))
            _write(ahead, g_logits, x, rows, here, ids)
    return log_prob, mean, log_total


def _result(hidden: Tensor) -> Tensor:
    return hidden.new_empty(hidden.shape[0], dtype=torch.promote_types(hidden.dtype, torch.float32))


def _empty_gradients(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Gradients:
    grad_bias = weight.new_empty(0) if bias is None else bias.new_empty(bias.shape)
    return hidden.new_empty(hidden.shape), weight.new_empty(weight.shape), grad_bias


def _zero_the_rest(gradients: Gradients, order: Tensor, starts: Tensor, words: Tensor, offsets: Tensor) -> None:
    """Zeros for what no cluster with tokens will write: writing everything twice would take as long as computing it."""
    grad_hidden, grad_weight, grad_bias = gradients
    grad_hidden[order[int(starts[-1]) :]] = 0
    idle = (starts.diff() == 0).repeat_interleave(offsets.diff())  # (V,) in the partition's order
    unused = words[idle]
    grad_weight.index_fill_(0, unused, 0)
    if grad_bias.numel():
        grad_bias.index_fill_(0, unused, 0)


def _write(gradients: Gradients, g_logits: Tensor, x: Tensor, rows: Tensor, here: Tensor, ids: Tensor) -> None:
    """The gradients of one cluster, from those of its logits (N, S)."""
    grad_hidden, grad_weight, grad_bias = gradients
    if grad_bias.numel():
        grad_bias[ids] = g_logits.sum(0).to(grad_bias.dtype)
    g_logits = g_logits.to(x.dtype)
    grad_hidden.index_copy_(0, here, g_logits @ rows)
    grad_weight.index_copy_(0, ids, (g_logits.T @ x).to(grad_weight.dtype))


def _backward(
    grad: Tensor | None,
    grad_mean: Tensor | None,
    log_total: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    order: Tensor,
    place: Tensor,
    starts: Tensor,
    words: Tensor,
    offsets: Tensor,
) -> Gradients:
    """Gradients of hidden (T, D), weight (V, D) and bias (V,; empty without one)."""
    gradients = _empty_gradients(hidden, weight, bias)
    _zero_the_rest(gradients, order, starts, words, offsets)
    grad = torch.zeros_like(log_total) if grad is None else grad
    grad_mean = torch.zeros_like(log_total) if grad_mean is None else grad_mean
    ordered = hidden[order]
    for tokens, span in _groups(starts, offsets):
        ids, here, x = words[span], order[tokens], ordered[tokens]
        rows = weight.index_select(0, ids).to(hidden.dtype)
        probability = (_logits(x, rows, bias, ids) - log_total[here, None]).exp()  # (N, S)
        g, g_mean = grad[here, None], grad_mean[here, None]
        g_logits = g_mean / ids.numel() - (g + g_mean) * probability
        g_logits.scatter_add_(1, (place[tokens] - span.start)[:, None], g.to(g_logits.dtype))
        _write(gradients, g_logits, x, rows, here, ids)
    return gradients


class _Eager(torch.autograd.Function):
    """The loop called directly: gradients computed ahead are handed over without a copy."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, *index: Tensor) -> tuple[Tensor, Tensor]:
        # In float16, gradients of a mean are too small to be computed before the loss is scaled.
        wanted = any(ctx.needs_input_grad) and hidden.dtype != torch.float16
        ctx.ahead = _empty_gradients(hidden, weight, bias) if wanted else None
        order, place, starts, words, offsets = index
        log_prob, mean, log_total = _forward(hidden, weight, bias, order, place, starts, words, offsets, ctx.ahead)
        ctx.save_for_backward(log_total, hidden, weight, bias, *index)
        ctx.set_materialize_grads(False)
        return log_prob, mean

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_mean: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        # Given away once: a second backward through the same graph must not meet what became somebody's `.grad`.
        gradients, ctx.ahead = ctx.ahead, None
        _, _, _, bias, order, _, starts, *_ = ctx.saved_tensors
        factor = None if gradients is None else _factor(grad, grad_mean, order, starts)
        if factor is None:
            gradients = _backward(grad, grad_mean, *ctx.saved_tensors)
        elif factor != 1:
            for gradient in gradients:
                gradient.mul_(factor)
        return gradients[0], gradients[1], None if bias is None else gradients[2], *(None,) * 5


def _factor(grad: Tensor | None, grad_mean: Tensor | None, order: Tensor, starts: Tensor) -> float | None:
    """What the gradients computed ahead are to be multiplied by; None: other ones are asked for."""
    n_used = int(starts[-1])
    if n_used == 0 or grad is None or (grad_mean is not None and bool(grad_mean.any())):
        return None
    asked = grad[order[:n_used]]
    if bool((asked != asked[0]).any()):
        return None
    factor = float(asked[0]) * -n_used
    # -1/n times n is 1 but for rounding: not worth going over all gradients again.
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
) -> tuple[Tensor, Tensor, Tensor]:
    return _forward(hidden, weight, bias, order, place, starts, words, offsets)


@_operator.register_fake
def _(hidden: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _result(hidden), _result(hidden), _result(hidden)


_backward_operator = torch.library.custom_op("coterie::grouped_backward", _backward, mutates_args=())


@_backward_operator.register_fake
def _(
    grad: Tensor | None,
    grad_mean: Tensor | None,
    log_total: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *rest: Tensor,
) -> Gradients:
    return _empty_gradients(hidden, weight, bias)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(output[2], *inputs)
    ctx.mark_non_differentiable(output[2])


def _differentiate(ctx: Any, grad: Tensor, grad_mean: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    grad_hidden, grad_weight, grad_bias = _backward_operator(grad, grad_mean, *ctx.saved_tensors)
    return grad_hidden, grad_weight, None if ctx.saved_tensors[3] is None else grad_bias, *(None,) * 5


_operator.register_autograd(_differentiate, setup_context=_setup_context)
