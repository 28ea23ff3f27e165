"""What a batch comes to, in one launch: log P of its targets, its loss, its part of the measures, and whether its
numbers are sound.

Shapes: T tokens.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.kernels.operator import Operator

BLOCK = 1024


def summarize(
    log_cluster: Tensor, log_word: Tensor, n_used: Tensor, sums: Tensor, tally: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """As `coterie.measures.summarize`: (T,), (T,), (), (3,), (4,) → log P of the targets (T,), the mean loss () and
    whether all is finite ()."""
    output, loss, sound, _, batch, marks = _summarize(log_cluster, log_word, n_used)
    sums += batch
    tally[2:] += marks
    return output, loss, sound


def _forward(
    log_cluster: Tensor, log_word: Tensor, n_used: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """log P of the targets (T,), the mean loss, whether it is sound, what each log-probability counts for in it
    (-1/n), and what to add to the measures (3,) and to the tally (2,)."""
    results = _empty(log_cluster)
    with torch.cuda.device_of(log_cluster):
        _sum_up[(1,)](log_cluster, log_word, n_used, *results, log_cluster.shape[0], BLOCK=BLOCK)
    return results


def _empty(like: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    output, loss, scale = (like.new_empty(shape, dtype=torch.float32) for shape in (like.shape, (), ()))
    sound = like.new_empty((), dtype=torch.bool)
    return output, loss, sound, scale, like.new_empty(3, dtype=torch.float64), like.new_empty(2, dtype=torch.int64)


def _fake(
    log_cluster: Tensor, log_word: Tensor, n_used: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _empty(log_cluster)


@triton.jit
def _sum_up(log_cluster, log_word, n_used, output, loss, sound, scale, batch, marks, n_tokens, BLOCK: tl.constexpr):
    cluster = tl.zeros((BLOCK,), tl.float32)
    word = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, n_tokens, BLOCK):
        token = first + tl.arange(0, BLOCK)
        of_cluster = tl.load(log_cluster + token, mask=token < n_tokens, other=0.0)
        of_word = tl.load(log_word + token, mask=token < n_tokens, other=0.0)
        tl.store(output + token, of_cluster + of_word, mask=token < n_tokens)
        cluster += of_cluster
        word += of_word
    cluster_sum, word_sum = tl.sum(cluster, 0), tl.sum(word, 0)
    n = tl.load(n_used)
    # A batch with nothing to predict has loss 0, not 0/0.
    each = -1.0 / tl.maximum(n, 1).to(tl.float32)
    total = cluster_sum + word_sum
    tl.store(loss, each * total)
    tl.store(scale, each)
    # Written so that a NaN, which compares false, is not sound.
    is_sound = tl.abs(total) < float("inf")
    tl.store(sound, is_sound)
    tl.store(batch, tl.where(is_sound, cluster_sum, 0.0).to(tl.float64))
    tl.store(batch + 1, tl.where(is_sound, word_sum, 0.0).to(tl.float64))
    tl.store(batch + 2, tl.where(is_sound, n, 0).to(tl.float64))
    tl.store(marks, tl.where(is_sound, 0, 1))
    tl.store(marks + 1, 1)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(output[3])
    ctx.shape = inputs[0].shape
    ctx.mark_non_differentiable(*output[2:])
    ctx.set_materialize_grads(False)  # each of the others would be a launch that fills zeros nobody reads


def _differentiate(
    ctx: Any, grad_output: Tensor | None, grad_loss: Tensor | None, *_: Tensor | None
) -> tuple[Tensor | None, ...]:
    each = grad_output
    if grad_loss is not None:
        # One number for every token, not T copies of it.
        each = (grad_loss * ctx.saved_tensors[0]).expand(ctx.shape)
        if grad_output is not None:
            each = each + grad_output
    return each, each, None


_summarize = Operator("summarize", _forward, _fake)
_summarize.differentiable(_setup_context, _differentiate)
