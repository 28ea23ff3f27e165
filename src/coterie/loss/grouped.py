"""The two-level loss with ordinary PyTorch operations: one small product per cluster that has tokens.

Nothing is padded and only the rows of one cluster are copied at a time. How many tokens a cluster has depends on the
data, so the loop is a custom operator, opaque to the compiler.

Shapes: T tokens, D width, V words, C clusters, N tokens of one cluster, S words of one cluster.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from coterie.grouping import Grouping
from coterie.loss.levels import LogProbs, cluster_level, cluster_logits, split
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
    cluster_hidden, word_hidden = split(hidden, weight.shape[1])
    word, mean_word, _ = _forward(word_hidden, weight, bias, *grouping, partition.words, partition.offsets)
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


@torch.library.custom_op("coterie::grouped", mutates_args=())
def _forward(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    order: Tensor,
    place: Tensor,
    starts: Tensor,
    words: Tensor,
    offsets: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """log P(target), mean log P and log Z of the target's cluster, each (T,)."""
    log_prob, mean, log_total = (_result(hidden).zero_() for _ in range(3))
    ordered = hidden[order]
    for tokens, span in _groups(starts, offsets):
        ids, here = words[span], order[tokens]
        logits = _logits(ordered[tokens], weight[ids].to(hidden.dtype), bias, ids)
        total = logits.logsumexp(1)
        log_total[here] = total
        log_prob[here] = logits.gather(1, (place[tokens] - span.start)[:, None]).squeeze(1) - total
        mean[here] = logits.mean(1) - total
    return log_prob, mean, log_total


@_forward.register_fake
def _(hidden: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _result(hidden), _result(hidden), _result(hidden)


def _result(hidden: Tensor) -> Tensor:
    return hidden.new_empty(hidden.shape[0], dtype=torch.promote_types(hidden.dtype, torch.float32))


@torch.library.custom_op("coterie::grouped_backward", mutates_args=())
def _backward(
    grad: Tensor,
    grad_mean: Tensor,
    log_total: Tensor,
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
    grad_hidden, grad_weight = torch.zeros_like(hidden), torch.zeros_like(weight)
    grad_bias = weight.new_zeros(0) if bias is None else torch.zeros_like(bias)
    ordered = hidden[order]
    for tokens, span in _groups(starts, offsets):
        ids, here, x = words[span], order[tokens], ordered[tokens]
        rows = weight[ids].to(hidden.dtype)
        probability = (_logits(x, rows, bias, ids) - log_total[here, None]).exp()  # (N, S)
        g, g_mean = grad[here, None], grad_mean[here, None]
        g_logits = g_mean / ids.numel() - (g + g_mean) * probability
        g_logits.scatter_add_(1, (place[tokens] - span.start)[:, None], g.to(g_logits.dtype))
        if bias is not None:
            grad_bias[ids] = g_logits.sum(0).to(bias.dtype)
        g_logits = g_logits.to(hidden.dtype)
        grad_hidden[here] = g_logits @ rows
        grad_weight[ids] = (g_logits.T @ x).to(weight.dtype)
    return grad_hidden, grad_weight, grad_bias


@_backward.register_fake
def _(
    grad: Tensor,
    grad_mean: Tensor,
    log_total: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *rest: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    grad_bias = weight.new_empty(0) if bias is None else torch.empty_like(bias)
    return torch.empty_like(hidden), torch.empty_like(weight), grad_bias


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[2], *inputs)
    ctx.mark_non_differentiable(output[2])


def _differentiate(ctx: Any, grad: Tensor, grad_mean: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    grad_hidden, grad_weight, grad_bias = _backward(grad, grad_mean, *ctx.saved_tensors)
    return grad_hidden, grad_weight, None if ctx.saved_tensors[3] is None else grad_bias, *(None,) * 5


_forward.register_autograd(_differentiate, setup_context=_setup_context)
