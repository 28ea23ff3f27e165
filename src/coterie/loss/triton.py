"""The two-level loss with Triton kernels: the cluster level's products by cuBLAS, the word level's over gathered rows.

Nothing waits for the device, launches depend on shapes alone, and no sum depends on the order in which programs
finish, so a step can be captured in a CUDA graph and two runs agree to the last bit.

Shapes: T tokens, D width, V words, C clusters, S most words in a cluster.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from coterie.clustering.partition import Partition
from coterie.kernels import products, softmax
from coterie.kernels.operator import Operator
from coterie.kernels.streams import beside
from coterie.loss.grouping import Grouping
from coterie.loss.levels import LogProbs, in_autocast, split

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


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
    """As `reference.two_level`; products in the dtype of the hidden vectors, or in autocast's, sums in float32."""
    hidden = in_autocast(hidden)
    word_hidden = None if word_hidden is None else in_autocast(word_hidden)
    if hidden.dtype not in DTYPES:
        raise TypeError(
            f"the Triton kernels compute in float32, bfloat16 or float16; got {hidden.dtype}: convert the layer "
            'or build it with backend="torch"'
        )
    cluster, word, mean_cluster, mean_word, *_ = _two_level(
        hidden, word_hidden, cluster_weight, cluster_bias, weight, bias, target, *grouping,
        partition.cluster_of, partition.words, partition.offsets, partition.capacity,
    )  # fmt: skip
    return LogProbs(cluster, word, mean_cluster, mean_word)


def _forward(
    hidden: Tensor,
    word_hidden: Tensor | None,
    cluster_weight: Tensor,
    cluster_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    order: Tensor,
    place: Tensor,
    starts: Tensor,
    cluster_of: Tensor,
    words: Tensor,
    offsets: Tensor,
    capacity: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The four of `LogProbs`, and what the backward needs: both levels' logits and log Z."""
    results = _empty_results(hidden, offsets, capacity)
    if hidden.shape[0] == 0:
        return results
    log_probs, (cluster_logits, logits, log_totals) = results[:4], results[4:]
    cluster_hidden, word_hidden = _dense(hidden, word_hidden, weight.shape[1])
    columns = cluster_weight.to(hidden.dtype).T
    shift = None if cluster_bias is None else cluster_bias.to(hidden.dtype)
    with torch.cuda.device_of(hidden):
        with beside(hidden) as join:
            # Written with `out=`, which autocast leaves alone: the operands have their dtype.
            if shift is None:
                torch.mm(cluster_hidden, columns, out=cluster_logits)
            else:
                torch.addmm(shift, cluster_hidden, columns, out=cluster_logits)
        products.logits(word_hidden, products.dense_rows(weight), bias, order, starts, words, offsets, logits)
        join()
        softmax.forward(
            cluster_logits, logits, order, place, target.contiguous(), cluster_of, offsets, *log_probs, log_totals
        )
    return results


def _dense(hidden: Tensor, word_hidden: Tensor | None, width: int) -> tuple[Tensor, Tensor]:
    """What each level sees, every row one stretch of memory."""
    word_hidden = None if word_hidden is None else products.dense_rows(word_hidden)
    return split(products.dense_rows(hidden), word_hidden, width)


def _empty_results(
    hidden: Tensor, offsets: Tensor, capacity: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    n_tokens = hidden.shape[0]
    cluster, word, mean_cluster, mean_word = (hidden.new_empty(n_tokens, dtype=torch.float32) for _ in range(4))
    cluster_logits = hidden.new_empty(n_tokens, offsets.shape[0] - 1)
    logits = hidden.new_empty(n_tokens, products.padded(capacity), dtype=torch.float32)
    log_totals = hidden.new_empty(2, n_tokens, dtype=torch.float32)
    return cluster, word, mean_cluster, mean_word, cluster_logits, logits, log_totals


def _forward_fake(hidden: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    *_, offsets, capacity = others
    return _empty_results(hidden, offsets, capacity)


def _backward(
    grad_cluster: Tensor | None,
    grad_word: Tensor | None,
    grad_mean_cluster: Tensor | None,
    grad_mean_word: Tensor | None,
    cluster_logits: Tensor,
    logits: Tensor,
    log_totals: Tensor,
    hidden: Tensor,
    word_hidden: Tensor | None,
    cluster_weight: Tensor,
    cluster_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    order: Tensor,
    place: Tensor,
    starts: Tensor,
    cluster_of: Tensor,
    words: Tensor,
    offsets: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of hidden, word_hidden, cluster_weight, cluster_bias, weight and bias; empty where there is none."""
    results = _empty_gradients(hidden, word_hidden, cluster_weight, cluster_bias, weight, bias)
    if hidden.shape[0] == 0:
        for gradient in results:
            gradient.zero_()
        return results
    grad_hidden, grad_word_hidden, grad_cluster_weight, grad_cluster_bias, grad_weight, grad_bias = results
    grad_cluster_hidden, grad_word_hidden = split(
        grad_hidden, None if word_hidden is None else grad_word_hidden, weight.shape[1]
    )
    cluster_hidden, word_hidden = _dense(hidden, word_hidden, weight.shape[1])
    grad_cluster_logits = torch.empty_like(cluster_logits)
    grad_logits = torch.empty_like(logits, dtype=hidden.dtype)
    index = (order, starts, words, offsets)
    rounded = cluster_weight.to(hidden.dtype)
    grad_rounded = grad_cluster_weight
    if cluster_weight.dtype != hidden.dtype:
        grad_rounded = torch.empty_like(grad_cluster_weight, dtype=hidden.dtype)
    with torch.cuda.device_of(hidden):
        softmax.backward(
            grad_cluster, grad_word, grad_mean_cluster, grad_mean_word, cluster_logits, logits, log_totals,
            order, place, target.contiguous(), cluster_of, offsets, grad_cluster_logits, grad_logits,
        )  # fmt: skip
        with beside(hidden) as join:
            torch.mm(grad_cluster_logits, rounded, out=grad_cluster_hidden)
            torch.mm(grad_cluster_logits.T, cluster_hidden, out=grad_rounded)
            if grad_rounded is not grad_cluster_weight:
                grad_cluster_weight.copy_(grad_rounded)
        products.grad_weight(
            grad_logits, word_hidden, grad_cluster_logits, *index, grad_weight,
            None if bias is None else grad_bias, None if cluster_bias is None else grad_cluster_bias,
        )  # fmt: skip
        # One vector for both levels: its two gradients add up.
        add = grad_word_hidden is grad_cluster_hidden
        if add:
            join()
        products.grad_hidden(grad_logits, products.dense_rows(weight), *index, grad_word_hidden, add=add)
        join()
    return results


def _empty_gradients(
    hidden: Tensor, word_hidden: Tensor | None, cluster_weight: Tensor, cluster_bias: Tensor | None, weight: Tensor,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Contiguous, whatever the tensors themselves are."""
    return (
        hidden.new_empty(hidden.shape),
        hidden.new_empty(0 if word_hidden is None else word_hidden.shape),
        cluster_weight.new_empty(cluster_weight.shape),
        cluster_weight.new_empty(0) if cluster_bias is None else cluster_bias.new_empty(cluster_bias.shape),
        weight.new_empty(weight.shape),
        weight.new_empty(0) if bias is None else bias.new_empty(bias.shape),
    )


def _backward_fake(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _empty_gradients(*inputs[7:13])  # both hidden, cluster_weight, cluster_bias, weight and bias


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[4:], *inputs[:-1])
    ctx.mark_non_differentiable(*output[4:])
    # A result that is not used, as the means are without label smoothing, has gradient None: nothing to fill or read.
    ctx.set_materialize_grads(False)


def _differentiate(gradients: Callable[..., Any], ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    results = gradients(*grads[:4], *ctx.saved_tensors)
    # Only a tensor that was given has a gradient, and the index tensors have none.
    given = [gradient if needed else None for gradient, needed in zip(results, ctx.needs_input_grad[:6], strict=True)]
    return *given, *(None,) * 8


_gradients = Operator("fused_backward", _backward, _backward_fake)
_two_level = Operator("fused", _forward, _forward_fake)
# A backward is not traced the way a forward is and cannot tell whether it is: each life has its own.
_two_level.differentiable(_setup_context, partial(_differentiate, _gradients.op), partial(_differentiate, _backward))
