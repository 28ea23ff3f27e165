"""Updates the statistic of all words in a batch in one launch.

In the grouping's order, the tokens of a word are together, as a run. A program has a chunk of tokens, and the runs that
start in it. A product with the matrix of which tokens have the same word sums the runs inside the chunk; if the last
run goes on, the program follows it to its end. Each row is written by one program in a fixed order, so the result is
reproducible.

Shapes: T tokens, K values a row, V words, R tokens of a chunk.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.clustering.statistics import Statistic
from coterie.kernels.operator import Operator
from coterie.kernels.sizes import n_tiles
from coterie.loss.grouping import Grouping

CHUNK = 32
AHEAD = 512  # tokens to search at a time for the end of a run that goes on
BLOCK_K = 128


def update(statistic: Statistic, sample: Tensor, grouping: Grouping, counts: Tensor, loss: Tensor) -> None:
    """The same as `Statistic.update`: `sample` (T, K), `counts` (V,), `loss` ()."""
    paper = statistic.smoothing == "paper"
    _update(statistic.total, statistic.weight, sample, grouping.table, counts, loss, paper)


def _launch(
    total: Tensor, weight: Tensor, sample: Tensor, table: Tensor, counts: Tensor, loss: Tensor, paper: bool
) -> None:  # fmt: skip
    n_tokens, row = sample.shape
    if n_tokens == 0:
        return
    with torch.cuda.device_of(sample):
        _remember[n_tiles(n_tokens, CHUNK), n_tiles(row, BLOCK_K)](
            total, weight, sample, table, counts, loss, n_tokens,
            N_STARTS=table.shape[0] - 3 * n_tokens, ROW_STRIDE=sample.stride(0), COLUMN_STRIDE=sample.stride(1),
            ROW=row,
            PAPER=paper, CHUNK=CHUNK, AHEAD=AHEAD, BLOCK_K=BLOCK_K, num_warps=4,
        )  # fmt: skip


def _fake(*_: object) -> None:
    """The operator has no outputs."""


_update = Operator("remember", _launch, _fake, mutates_args=("total", "weight"))


@triton.jit
def _remember(
    total, weight, sample, table, counts, loss, n_tokens,
    N_STARTS: tl.constexpr, ROW_STRIDE: tl.constexpr, COLUMN_STRIDE: tl.constexpr,
    ROW: tl.constexpr, PAPER: tl.constexpr, CHUNK: tl.constexpr, AHEAD: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program per chunk of tokens, in order, and BLOCK_K values."""
    # In this form NaN, which compares false, returns too.
    if not (tl.abs(tl.load(loss).to(tl.float32)) < float("inf")):
        return
    order, place, target = table, table + n_tokens, table + 2 * n_tokens + N_STARTS
    end = (tl.program_id(0) + 1) * CHUNK
    i = end - CHUNK + tl.arange(0, CHUNK)
    here = tl.load(place + i, mask=i < n_tokens, other=-2)
    before = tl.load(place + i - 1, mask=(i > 0) & (i < n_tokens), other=-1)
    beyond = tl.load(place + end, mask=end < n_tokens, other=-1)
    # Words that stand alone are sorted behind those of all clusters, and are not remembered.
    used = i < tl.load(table + 2 * n_tokens + N_STARTS - 2)
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    columns, inside = sample + k[None, :] * COLUMN_STRIDE, (k < ROW)[None, :]
    token = tl.load(order + i, mask=used, other=0)
    x = tl.load(columns + token[:, None] * ROW_STRIDE, mask=used[:, None] & inside, other=0.0)
    same = here[:, None] == here[None, :]
    ones = same.to(tl.float32).to(x.dtype)
    sums = tl.dot(ones, x, input_precision="ieee")  # (R, BLOCK_K) of the run each token is in
    n = tl.sum(same.to(tl.int32), 1)

    # A run that starts in an earlier chunk belongs to that chunk's program.
    starts, goes_on = used & (here != before), here == beyond
    if tl.sum((starts & goes_on).to(tl.int32), 0) > 0:
        more, n_more = _follow(columns, inside, order, place, beyond, end, n_tokens, ROW_STRIDE, CHUNK, AHEAD, BLOCK_K)
        sums += tl.where(goes_on[:, None], more[None, :], 0.0)
        n += tl.where(goes_on, n_more, 0)

    word = tl.load(target + token, mask=starts, other=0)
    share = _share(tl.load(counts + word, mask=starts, other=1), n, PAPER)
    at = total + word[:, None] * ROW + k[None, :]
    old = tl.load(at, mask=starts[:, None] & inside, other=0.0)
    tl.store(at, old + share[:, None] * (sums / n[:, None] - old), mask=starts[:, None] & inside)
    # `total` does not depend on `weight`, so one of a row's programs can update it.
    if tl.program_id(1) == 0:
        old_weight = tl.load(weight + word, mask=starts, other=0.0)
        tl.store(weight + word, old_weight + share * (1 - old_weight), mask=starts)


@triton.jit
def _follow(
    columns, inside, order, place, run, first, n_tokens,
    ROW_STRIDE: tl.constexpr, CHUNK: tl.constexpr, AHEAD: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The sum (BLOCK_K,) of the tokens of a run from `first` on, and their number."""
    # Find the end before adding, so that rows can be prefetched for the sum.
    end, found = first, AHEAD
    while found == AHEAD:
        at = end + tl.arange(0, AHEAD)
        found = tl.sum((tl.load(place + at, mask=at < n_tokens, other=-1) == run).to(tl.int32), 0)
        end += found
    sums = tl.zeros((CHUNK, BLOCK_K), tl.float32)
    for start in tl.range(first, end, CHUNK, num_stages=4):
        i = start + tl.arange(0, CHUNK)
        token = tl.load(order + i, mask=i < end, other=0)
        x = tl.load(columns + token[:, None] * ROW_STRIDE, mask=(i < end)[:, None] & inside, other=0.0)
        sums += x.to(tl.float32)
    return tl.sum(sums, 0), end - first


@triton.jit
def _share(count, n, PAPER: tl.constexpr):
    """1 - λⁿ, the weight of n occurrences of a word in a batch.

    Repeatedly doubles n in 1 - λⁿ instead of taking a power: with 1 - λ = 1e-6, 1 - (1 - 1e-6)ⁿ is mostly rounding.
    """
    inverse = 1.0 / tl.maximum(count, 1).to(tl.float32)
    power = 1.0 - inverse if PAPER else inverse
    share = power * 0.0
    most = tl.max(n, 0)
    while most > 0:
        share = tl.where(n % 2 == 1, share + power * (1.0 - share), share)
        power = power * (2.0 - power)
        n, most = n // 2, most // 2
    return share
