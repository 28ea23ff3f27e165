"""The two-level loss with ordinary PyTorch operations: one small product per cluster that has tokens.

Nothing is padded and only the rows of one cluster are copied at a time. While they are at hand, the forward also
computes the gradients that a loss averaged over all tokens will ask for, so that no row is fetched twice; any other
gradient is computed in a pass of its own. How many tokens a cluster has depends on the data: to the compiler the loop
is one opaque operator.

Shapes: T tokens, D width, V words, C clusters, N tokens of one cluster, S words of one cluster.
"""

from typing import Any

import torch
from torch import Tensor

from coterie.grouping import Grouping
from coterie.loss.clusters import Gradients, Part, visit
from coterie.loss.levels import LogProbs, cluster_level, cluster_logits, in_autocast, refuse_second_derivatives, split
from coterie.partition import Partition


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
        word, mean_word = _operator(word_hidden, weight, bias, *index)
    elif not torch.is_grad_enabled():
        word, mean_word = _forward(word_hidden, weight, bias, *index)
    else:
        word, mean_word = _Eager.apply(word_hidden, weight, bias, *index)  # type: ignore[no-untyped-call]
    logits = cluster_logits(cluster_hidden, cluster_weight, cluster_bias)
    cluster, mean_cluster = cluster_level(logits, target, partition)
    return LogProbs(cluster, word, mean_cluster, mean_word)


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
) -> tuple[Tensor, Tensor]:
    """log P(target) and the mean of log P over the words of its cluster, each (T,).

    Writes to `ahead` the gradients of the negative mean of log P(target).
    """
    log_prob, mean = _results(hidden)
    log_prob, mean = log_prob.zero_()[:, None], mean.zero_()  # in the grouping's order until the end
    minus_one = torch.full_like(log_prob, -1)
    each = 1 / max(int(starts[-1]), 1)

    def work(part: Part) -> None:
        log_p = part.logits.log_softmax(1)
        log_prob[part.tokens] = log_p.gather(1, part.own)
        mean[part.tokens] = log_p.mean(1)
        if ahead is not None:
            # Probability - 1 at the target, in the same memory.
            ahead.write(part, log_p.exp_().scatter_add_(1, part.own, minus_one[part.tokens]), each)

    visit(work, hidden, weight, bias, order, place, starts, words, offsets)
    results = _results(hidden)
    return results[0].index_copy_(0, order, log_prob.squeeze(1)), results[1].index_copy_(0, order, mean)


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
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of hidden (T, D), weight (V, D) and bias (V,; empty without one)."""
    gradients = Gradients(hidden, weight, bias, starts, words, offsets)
    zero = _results(hidden)[0].zero_()
    asked = (zero if grad is None else grad)[order, None]  # (T, 1) in the grouping's order
    asked_mean = (zero if grad_mean is None else grad_mean)[order, None]

    def work(part: Part) -> None:
        g, g_mean = asked[part.tokens], asked_mean[part.tokens]
        g_logits = g_mean / part.ids.numel() - (g + g_mean) * part.logits.softmax(1)
        gradients.write(part, g_logits.scatter_add_(1, part.own, g.to(g_logits.dtype)), 1.0)

    visit(work, hidden, weight, bias, order, place, starts, words, offsets)
    return gradients.finish(order, words)


class _Eager(torch.autograd.Function):
    """The loop called directly: gradients computed ahead are handed over without a copy."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, *index: Tensor) -> tuple[Tensor, Tensor]:
        # In float16, gradients of a mean are too small to be computed before the loss is scaled.
        wanted = any(ctx.needs_input_grad) and hidden.dtype != torch.float16
        order, place, starts, words, offsets = index
        ahead = Gradients(hidden, weight, bias, starts, words, offsets) if wanted else None
        log_prob, mean = _forward(hidden, weight, bias, order, place, starts, words, offsets, ahead)
        ctx.ahead = None if ahead is None else ahead.finish(order, words)
        ctx.save_for_backward(hidden, weight, bias, *index)
        ctx.set_materialize_grads(False)
        return log_prob, mean

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_mean: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        # Given away once: a second backward through the same graph must not meet what became somebody's `.grad`.
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
) -> tuple[Tensor, Tensor]:
    return _forward(hidden, weight, bias, order, place, starts, words, offsets)


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
) -> tuple[Tensor, Tensor, Tensor]:
    grad_bias = weight.new_empty(0) if bias is None else bias.new_empty(bias.shape)
    return hidden.new_empty(hidden.shape), weight.new_empty(weight.shape), grad_bias


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, grad: Tensor, grad_mean: Tensor) -> tuple[Tensor | None, ...]:
    grad_hidden, grad_weight, grad_bias = _backward_operator(grad, grad_mean, *ctx.saved_tensors)
    return grad_hidden, grad_weight, None if ctx.saved_tensors[2] is None else grad_bias, *(None,) * 5


_operator.register_autograd(_differentiate, setup_context=_setup_context)
