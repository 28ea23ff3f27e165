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

from coterie.clustering.partition import Partition
from coterie.loss.clusters import Gradients, Part, Pass
from coterie.loss.grouping import Grouping
from coterie.loss.levels import LogProbs, cluster_level, cluster_logits, in_autocast, refuse_second_derivatives, split

Computed = tuple[Tensor, Tensor, Tensor]  # gradients of hidden (T, D), weight (V, D) and bias (V,; empty without one)


def two_level(
    hidden: Tensor,
    word_hidden: Tensor | None,
    cluster_weight: Tensor,
    cluster_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    partition: Partition,
    grouping: Grouping,
) -> LogProbs:
    """As `reference.two_level`."""
    cluster_hidden, word_hidden = map(in_autocast, split(hidden, word_hidden, weight.shape[1]))
    index = (*grouping, partition.words, partition.offsets)
    if torch.compiler.is_compiling():
        word, mean_word = _operator(word_hidden, weight, bias, *index)
    elif not torch.is_grad_enabled():
        word, mean_word, _ = _forward(word_hidden, weight, bias, *index)
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
    ahead: bool = False,
) -> tuple[Tensor, Tensor, Computed | None]:
    """log P(target) and the mean of log P over the words of its cluster, each (T,).

    If asked to look ahead, also the gradients of the negative mean of log P(target).
    """
    over = Pass(order, place, starts, words, offsets)
    gradients = Gradients(over, hidden, weight, bias, 1 / max(over.n_used, 1)) if ahead else None
    log_prob, total = (result.zero_()[:, None] for result in _results(hidden))  # in the grouping's order until the end
    log_probs, totals, minus_ones = (over.by_token(part) for part in (log_prob, total, torch.full_like(total, -1)))

    def work(part: Part) -> None:
        log_p = part.logits.log_softmax(1)
        torch.gather(log_p, 1, part.own, out=log_probs[part.cluster])
        torch.sum(log_p, 1, keepdim=True, out=totals[part.cluster])
        if gradients is not None:
            # Of the negative sum: the probability, less 1 at the target.
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
    """The gradients, from those of both results."""
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
    """The loop called directly: gradients computed ahead are handed over without a copy."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, *index: Tensor) -> tuple[Tensor, Tensor]:
        # In float16, gradients of a mean are too small to be computed before the loss is scaled.
        wanted = any(ctx.needs_input_grad) and hidden.dtype != torch.float16
        order, place, starts, words, offsets = index
        log_prob, mean, ctx.ahead = _forward(hidden, weight, bias, order, place, starts, words, offsets, wanted)
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
