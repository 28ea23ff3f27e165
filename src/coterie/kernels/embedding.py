"""The gradient of an embedding: one program per word adds up the gradients of its tokens.

Every row has one writer, rows of words that are not there included: nothing has to be cleared first, and the result
is the same every time.

Shapes: T tokens, V words, D width.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from coterie.kernels.grouping import rank

TOKENS = 8  # added up at a time


def lookup(weight: Tensor, words: Tensor) -> Tensor:
    """weight (V, D), words (...) → (..., D)."""
    found: Tensor = _Lookup.apply(weight, words)  # type: ignore[no-untyped-call]
    return found


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, words: Tensor) -> Tensor:
        ctx.save_for_backward(words)
        ctx.shape, ctx.dtype = weight.shape, weight.dtype
        return F.embedding(words, weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        (words,) = ctx.saved_tensors
        return sum_by_word(gradients[0].reshape(-1, ctx.shape[1]), words.reshape(-1), ctx.shape[0]).to(ctx.dtype), None


def sum_by_word(rows: Tensor, words: Tensor, n_words: int) -> Tensor:
    """The sum of each word's rows: (T, D), (T,) → (V, D) in float32; zeros where a word does not occur."""
    order, _, starts = rank(words.int(), torch.arange(n_words + 1, device=words.device))
    rows, width = rows.contiguous(), rows.shape[1]
    sums = torch.empty(n_words, width, dtype=torch.float32, device=rows.device)
    block = min(512, triton.next_power_of_2(width))
    with torch.cuda.device_of(rows):
        _sum[(n_words, triton.cdiv(width, block))](rows, order, starts, sums, width, TOKENS=TOKENS, BLOCK=block)
    return sums


@triton.jit
def _sum(rows, order, starts, sums, width, TOKENS: tl.constexpr, BLOCK: tl.constexpr):
    """One program per word and BLOCK values."""
    word = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    end = tl.load(starts + word + 1)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(tl.load(starts + word), end, TOKENS):
        i = first + tl.arange(0, TOKENS)
        token = tl.load(order + i, mask=i < end, other=0)
        inside = (i < end)[:, None] & (k < width)[None, :]
        total += tl.sum(tl.load(rows + token[:, None] * width + k[None, :], mask=inside, other=0.0).to(tl.float32), 0)
    tl.store(sums + word * width + k, total, mask=k < width)
