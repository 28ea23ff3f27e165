"""The gradient of an embedding: tokens are sorted by word, and one program adds up the gradients of a word.

Each row is written by one program in a fixed order, so the result is reproducible. The rows of absent words are zeroed
beforehand: most of a vocabulary does not occur in a batch, and a program for each word would take longer.

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
from coterie.kernels.sizes import n_tiles

TOKENS = 32  # added up at a time: a frequent word's are many, and each turn waits for memory
BLOCK = 128  # columns of one program


def lookup(weight: Tensor, words: Tensor) -> Tensor:
    """weight (V, D), words (...) → (..., D)."""
    found: Tensor = _Lookup.apply(weight, words)  # type: ignore[no-untyped-call]
    return found


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, words: Tensor) -> Tensor:
        ctx.save_for_backward(words)
        ctx.shape, ctx.dtype = weight.shape, weight.dtype
        found = F.embedding(words, weight)
        # The next operation would round them anyway; this halves the memory of activations and their gradients.
        return found.to(torch.get_autocast_dtype("cuda")) if torch.is_autocast_enabled("cuda") else found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        (words,) = ctx.saved_tensors
        return sum_by_word(gradients[0].reshape(-1, ctx.shape[1]), words.reshape(-1), ctx.shape[0]).to(ctx.dtype), None


def sum_by_word(rows: Tensor, words: Tensor, n_words: int) -> Tensor:
    """The sum of each word's rows: (T, D), (T,) → (V, D) in float32; zeros where a word does not occur."""
    rows, (n_tokens, width) = rows.contiguous(), rows.shape
    sums = torch.zeros(n_words, width, dtype=torch.float32, device=rows.device)
    if n_tokens == 0:
        return sums
    order, ordered, _ = rank(words.int(), words.new_zeros(1))
    with torch.cuda.device_of(rows):
        _sum[(n_tokens, n_tiles(width, BLOCK))](rows, order, ordered, sums, n_tokens, width, TOKENS=TOKENS, BLOCK=BLOCK)
    return sums


@triton.jit
def _sum(rows, order, words, sums, n_tokens, width, TOKENS: tl.constexpr, BLOCK: tl.constexpr):
    """One program per token, in order, and BLOCK values: something to do where it is its word's first."""
    first = tl.program_id(0)
    word = tl.load(words + first)
    if word == tl.load(words + first - 1, mask=first > 0, other=-1):
        return
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((TOKENS, BLOCK), tl.float32)  # summed over the tokens at the end: across threads, that waits
    going_on = True
    while going_on:
        i = first + tl.arange(0, TOKENS)
        own = tl.load(words + i, mask=i < n_tokens, other=-1) == word
        token = tl.load(order + i, mask=own, other=0)
        inside = own[:, None] & (k < width)[None, :]
        total += tl.load(rows + token[:, None] * width + k[None, :], mask=inside, other=0.0).to(tl.float32)
        first += TOKENS
        going_on = tl.load(words + first, mask=first < n_tokens, other=-1) == word
    tl.store(sums + word * width + k, tl.sum(total, 0), mask=k < width)
