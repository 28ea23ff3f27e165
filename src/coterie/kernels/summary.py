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

BLOCK, NUM_WARPS = 4096, 16  # a batch at once, mostly: what is written between two loads would make the second wait


def summarize(
    log_cluster: Tensor, log_word: Tensor, n_used: Tensor, sums: Tensor, tally: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """As `coterie.metrics.summarize`: (T,), (T,), (), (3,), (4,) → log P of the targets (T,), the mean loss () and
    whether all is finite ()."""
    if not torch.compiler.is_compiling():
        output, loss, sound, *_ = _summarize(log_cluster, log_word, n_used, sums, tally)
        return output, loss, sound
    # An operator that has a gradient must not change what it is given: the compiler fuses these additions itself.
    output, loss, sound, _, batch, marks = _summarize(log_cluster, log_word, n_used, None, None)
    sums += batch
    tally[2:] += marks
    return output, loss, sound


def _forward(
    log_cluster: Tensor, log_word: Tensor, n_used: Tensor, sums: Tensor | None, tally: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """log P of the targets (T,), the mean loss, whether it is sound, what each log-probability counts for in it
    (-1/n), and what to add to the measures (3,) and to the tally (2,); `sums` and `tally` are those, if it is to be
    added at once."""
    results = _empty(log_cluster)
    with torch.cuda.device_of(log_cluster):
        _sum_up[(1,)](
            log_cluster, log_word, n_used, *results, sums, tally, log_cluster.shape[0],
            BLOCK=BLOCK, num_warps=NUM_WARPS,
        )  # fmt: skip
    return results


def _empty(like: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    output, loss, scale = (like.new_empty(shape, dtype=torch.float32) for shape in (like.shape, (), ()))
    sound = like.new_empty((), dtype=torch.bool)
    return output, loss, sound, scale, like.new_empty(3, dtype=torch.float64), like.new_empty(2, dtype=torch.int64)


def _fake(
    log_cluster: Tensor, log_word: Tensor, n_used: Tensor, sums: Tensor | None, tally: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _empty(log_cluster)


@triton.jit
def _sum_up(
    log_cluster, log_word, n_used, output, loss, sound, scale, batch, marks, sums, tally, n_tokens, BLOCK: tl.constexpr
):  # fmt: skip
    """One program in all: it alone changes `sums` and `tally`."""
    j = tl.arange(0, 4)
    n = tl.load(n_used)
    if sums is not None:  # read now: the walk takes as long as the memory does to answer
        old_sums = tl.load(sums + j, mask=j < 3, other=0.0)
        old_tally = tl.load(tally + 2 + j, mask=j < 2, other=0)
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
    # A batch with nothing to predict has loss 0, not 0/0.
    each = -1.0 / tl.maximum(n, 1).to(tl.float32)
    total = cluster_sum + word_sum
    tl.store(loss, each * total)
    tl.store(scale, each)
    # Written so that a NaN, which compares false, is not sound.
    is_sound = tl.abs(total) < float("inf")
    tl.store(sound, is_sound)
    part = tl.where(j == 0, cluster_sum.to(tl.float64), tl.where(j == 1, word_sum.to(tl.float64), n.to(tl.float64)))
    part = tl.where(is_sound, part, 0.0)
    mark = tl.where(j == 0, tl.where(is_sound, 0, 1), 1)
    tl.store(batch + j, part, mask=j < 3)
    tl.store(marks + j, mark, mask=j < 2)
    if sums is not None:
        tl.store(sums + j, old_sums + part, mask=j < 3)
        tl.store(tally + 2 + j, old_tally + mark, mask=j < 2)


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
    return each, each, None, None, None


_summarize = Operator("summarize", _forward, _fake)
_summarize.differentiable(_setup_context, _differentiate)
