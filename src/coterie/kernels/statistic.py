"""What is remembered of each word, brought up to date in two launches.

Tokens of one word, a run, stand together in the grouping's order. The first launch takes the tokens in chunks: a
product with the matrix of who has the same word sums every run inside the chunk, and a run that lies in it whole is
written at once. A frequent word's run crosses chunks; the second launch adds up its parts. Every row has one writer
and every sum one order, so the result is the same every time.

Shapes: T tokens, K values a row, V words, R tokens of a chunk.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.grouping import Grouping
from coterie.kernels.operator import Operator
from coterie.statistics import Statistic

CHUNK = 32
BLOCK_K = 128


def update(
    statistic: Statistic, sample: Tensor, target: Tensor, grouping: Grouping, counts: Tensor, sound: Tensor
) -> None:
    """As `Statistic.update`: `sample` (T, K), `target` (T,), `counts` (V,), `sound` ()."""
    paper = statistic.smoothing == "paper"
    total, weight = statistic.total, statistic.weight
    _update(total, weight, sample.detach(), target, grouping.order, grouping.place, counts, sound, paper)


def _take_in(
    total: Tensor, weight: Tensor, sample: Tensor, target: Tensor, order: Tensor, place: Tensor, counts: Tensor,
    sound: Tensor, paper: bool,
) -> None:  # fmt: skip
    n_tokens, row = sample.shape
    if n_tokens == 0:
        return
    chunks = triton.cdiv(n_tokens, CHUNK)
    # Of each chunk: the sum of the run that came into it, and of the one that goes on beyond it.
    parts = torch.empty(chunks, 2, row, dtype=torch.float32, device=sample.device)
    shared = (target, order, place, counts, sound, parts, n_tokens, counts.shape[0], row)
    grid = (chunks, triton.cdiv(row, BLOCK_K))
    with torch.cuda.device_of(sample):
        _within[grid](
            total, weight, sample, *sample.stride(), *shared, PAPER=paper, CHUNK=CHUNK, BLOCK_K=BLOCK_K, num_warps=4
        )
        _across[grid](total, weight, *shared, PAPER=paper, CHUNK=CHUNK, BLOCK_K=BLOCK_K, num_warps=1)


def _fake(*_: object) -> None:
    """Nothing new comes of it."""


_update = Operator("remember", _take_in, _fake, mutates_args=("total", "weight"))


@triton.jit
def _within(
    total, weight, sample, row_stride, column_stride, target, order, place, counts, sound, parts,
    n_tokens, n_words, row,
    PAPER: tl.constexpr, CHUNK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program per chunk of tokens, in order, and BLOCK_K values."""
    if tl.load(sound) == 0:
        return
    chunk = tl.program_id(0)
    i = chunk * CHUNK + tl.arange(0, CHUNK)
    here = tl.load(place + i, mask=i < n_tokens, other=-2)
    before = tl.load(place + i - 1, mask=(i > 0) & (i < n_tokens), other=-1)
    beyond = tl.load(place + (chunk + 1) * CHUNK, mask=(chunk + 1) * CHUNK < n_tokens, other=-1)
    used = (here >= 0) & (here < n_words)
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    token = tl.load(order + i, mask=used, other=0)
    x = tl.load(
        sample + token[:, None] * row_stride + k[None, :] * column_stride,
        mask=used[:, None] & (k < row)[None, :],
        other=0.0,
    )
    same = here[:, None] == here[None, :]
    ones = same.to(tl.float32).to(x.dtype)
    sums = tl.dot(ones, x, input_precision="ieee")  # (R, BLOCK_K) of the run each token is in
    n = tl.sum(same.to(tl.int32), 1)

    starts, goes_on = here != before, here == beyond
    whole = used & starts & (here != beyond)
    word = tl.load(target + token, mask=whole, other=0)
    share = _share(tl.load(counts + word, mask=whole, other=1), n, PAPER, 8)  # n is at most CHUNK
    mask = whole[:, None] & (k < row)[None, :]
    at = total + word[:, None] * row + k[None, :]
    old = tl.load(at, mask=mask, other=0.0)
    tl.store(at, old + share[:, None] * (sums / n[:, None] - old), mask=mask)
    # `total` does not depend on `weight`: only one of a row's programs touches it.
    if tl.program_id(1) == 0:
        old_weight = tl.load(weight + word, mask=whole, other=0.0)
        tl.store(weight + word, old_weight + share * (1 - old_weight), mask=whole)

    first, last = i == chunk * CHUNK, i == chunk * CHUNK + CHUNK - 1
    came_in = tl.sum(tl.where((first & ~starts)[:, None], sums, 0.0), 0)
    going_on = tl.sum(tl.where((last & goes_on)[:, None], sums, 0.0), 0)
    tl.store(parts + (2 * chunk) * row + k, came_in, mask=k < row)
    tl.store(parts + (2 * chunk + 1) * row + k, going_on, mask=k < row)


@triton.jit
def _across(
    total, weight, target, order, place, counts, sound, parts, n_tokens, n_words, row,
    PAPER: tl.constexpr, CHUNK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program per chunk and BLOCK_K values: something to do where a run starts that goes on beyond the chunk."""
    chunk = tl.program_id(0)
    beyond = (chunk + 1) * CHUNK
    if beyond >= n_tokens:
        return
    here = tl.load(place + beyond - 1)
    before = tl.load(place + chunk * CHUNK - 1, mask=chunk > 0, other=-1)
    if (here != tl.load(place + beyond)) | (here == before) | (here >= n_words) | (tl.load(sound) == 0):
        return
    i = tl.arange(0, CHUNK)
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    n = tl.sum((tl.load(place + chunk * CHUNK + i) == here).to(tl.int32), 0)
    sums = tl.load(parts + (2 * chunk + 1) * row + k, mask=k < row, other=0.0)
    found = CHUNK
    while found == CHUNK:
        chunk += 1
        at = chunk * CHUNK + i
        found = tl.sum((tl.load(place + at, mask=at < n_tokens, other=-1) == here).to(tl.int32), 0)
        if found > 0:
            sums += tl.load(parts + (2 * chunk) * row + k, mask=k < row, other=0.0)
        n += found
    word = tl.load(target + tl.load(order + beyond - 1))
    share = _share(tl.load(counts + word), n, PAPER, 31)
    old = tl.load(total + word * row + k, mask=k < row, other=0.0)
    tl.store(total + word * row + k, old + share * (sums / n - old), mask=k < row)
    if tl.program_id(1) == 0:
        old_weight = tl.load(weight + word)
        tl.store(weight + word, old_weight + share * (1 - old_weight))


@triton.jit
def _share(count, n, PAPER: tl.constexpr, BITS: tl.constexpr):
    """1 - λⁿ, what a batch with n occurrences of a word counts for; n has at most BITS bits.

    By doubling what remains to be learned, not by a power: 1 - λ is as small as 1e-6, and 1 - (1 - 1e-6)ⁿ would be
    mostly rounding.
    """
    inverse = 1.0 / tl.maximum(count, 1).to(tl.float32)
    power = 1.0 - inverse if PAPER else inverse
    share = power * 0.0
    left = n
    for _ in range(BITS):
        share = tl.where(left % 2 == 1, share + power * (1.0 - share), share)
        power = power * (2.0 - power)
        left = left // 2
    return share
