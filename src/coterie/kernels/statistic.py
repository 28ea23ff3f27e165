"""What is remembered of each word, brought up to date in two launches.

Tokens of one word stand together in the grouping's order. The program at the first of them takes the mean of the whole
run and writes the word's row, so that every row has one writer and the result is the same every time.

Shapes: T tokens, K values a row, V words, C clusters.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.grouping import Grouping
from coterie.statistics import Statistic

CHECK_ROWS = 16  # tokens one program looks through for values that are not finite
RUN_ROWS = 16  # tokens of a run summed at a time
BLOCK_K = 128
BLOCK_RUN = 128  # tokens looked at when a run is measured
BLOCK_FLAGS = 1024


def update(statistic: Statistic, sample: Tensor, target: Tensor, grouping: Grouping, counts: Tensor) -> Tensor:
    """As `Statistic.update`: `sample` (T, K), `target` (T,), `counts` (V,)."""
    paper = statistic.smoothing == "paper"
    taken: Tensor = _update(
        statistic.total, statistic.weight, sample.detach(), target, grouping.order, grouping.place, counts, paper
    )
    return taken


@torch.library.custom_op("coterie::remember", mutates_args=("total", "weight"))
def _update(
    total: Tensor, weight: Tensor, sample: Tensor, target: Tensor, order: Tensor, place: Tensor, counts: Tensor,
    paper: bool,
) -> Tensor:  # fmt: skip
    finite = torch.empty((), dtype=torch.bool, device=sample.device)
    n_tokens, row = sample.shape
    if n_tokens == 0:
        return finite.fill_(True)
    target = target.contiguous()
    checks = triton.cdiv(n_tokens, CHECK_ROWS)
    broken = torch.empty(checks, dtype=torch.int32, device=sample.device)
    with torch.cuda.device_of(sample):
        _check[(checks,)](
            sample, *sample.stride(), target, broken, n_tokens, row, ROWS=CHECK_ROWS, BLOCK_K=BLOCK_K
        )  # fmt: skip
        _remember[(n_tokens, triton.cdiv(row, BLOCK_K))](
            total, weight, sample, *sample.stride(), target, order, place, counts, broken, finite,
            n_tokens, counts.shape[0], row, checks,
            PAPER=paper, ROWS=RUN_ROWS, BLOCK_K=BLOCK_K, BLOCK_RUN=BLOCK_RUN, BLOCK_FLAGS=BLOCK_FLAGS,
        )  # fmt: skip
    return finite


@_update.register_fake
def _(total: Tensor, weight: Tensor, sample: Tensor, *rest: object) -> Tensor:
    return sample.new_empty((), dtype=torch.bool)


@triton.jit
def _check(
    sample, row_stride, column_stride, target, broken, n_tokens, row,
    ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Says whether any of ROWS tokens that are used has a value that is not finite."""
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    used = tl.load(target + token, mask=token < n_tokens, other=-1) >= 0
    rows = sample + token.to(tl.int64)[:, None] * row_stride
    wrong = tl.zeros((ROWS, BLOCK_K), tl.int32)
    for first in range(0, row, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        x = tl.load(rows + k[None, :] * column_stride, mask=used[:, None] & (k < row)[None, :], other=0.0)
        # Not "== inf or NaN": written so that a NaN, which compares false, counts too.
        wrong = tl.where(tl.abs(x.to(tl.float32)) < float("inf"), wrong, 1)
    tl.store(broken + tl.program_id(0), tl.max(tl.max(wrong, 1), 0))


@triton.jit
def _remember(
    total, weight, sample, row_stride, column_stride, target, order, place, counts, broken, finite,
    n_tokens, n_words, row, n_checks,
    PAPER: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_RUN: tl.constexpr,
    BLOCK_FLAGS: tl.constexpr,
):  # fmt: skip
    """One program per token, in order, and BLOCK_K values: nothing to do but for the first token of each word."""
    first = tl.program_id(0)
    here = tl.load(place + first)
    before = tl.load(place + first - 1, mask=first > 0, other=-1)
    if here == before:
        return
    wrong = 0
    for start in range(0, n_checks, BLOCK_FLAGS):
        flag = start + tl.arange(0, BLOCK_FLAGS)
        wrong = tl.maximum(wrong, tl.max(tl.load(broken + flag, mask=flag < n_checks, other=0), 0))
    if (first == 0) & (tl.program_id(1) == 0):
        tl.store(finite, wrong == 0)
    if (wrong > 0) | (here >= n_words):
        return

    # The run's length, so that the sum below is a plain loop, whose loads overlap.
    n = 0
    found = BLOCK_RUN
    while found == BLOCK_RUN:
        at = first + n + tl.arange(0, BLOCK_RUN)
        found = tl.sum((tl.load(place + at, mask=at < n_tokens, other=-1) == here).to(tl.int32), 0)
        n += found

    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    sums = tl.zeros((ROWS, BLOCK_K), tl.float32)
    for start in range(0, n, ROWS):
        at = start + tl.arange(0, ROWS)
        token = tl.load(order + first + at, mask=at < n, other=0)
        x = tl.load(
            sample + token[:, None] * row_stride + k[None, :] * column_stride,
            mask=(at < n)[:, None] & (k < row)[None, :],
            other=0.0,
        )
        sums += x.to(tl.float32)
    mean = tl.sum(sums, 0) / n

    word = tl.load(target + tl.load(order + first))
    share = _share(tl.load(counts + word), n, PAPER)
    old = tl.load(total + word * row + k, mask=k < row, other=0.0)
    tl.store(total + word * row + k, old + share * (mean - old), mask=k < row)
    # `total` does not depend on `weight`: only one of the row's programs touches it.
    if tl.program_id(1) == 0:
        old_weight = tl.load(weight + word)
        tl.store(weight + word, old_weight + share * (1 - old_weight))


@triton.jit
def _share(count, n, PAPER: tl.constexpr):
    """1 - λⁿ, what a batch with n occurrences of a word counts for.

    By doubling what remains to be learned, not by a power: 1 - λ is as small as 1e-6, and 1 - (1 - 1e-6)ⁿ would be
    mostly rounding.
    """
    inverse = 1.0 / tl.maximum(count, 1).to(tl.float32)
    power = 1.0 - inverse if PAPER else inverse
    share = tl.zeros_like(power)
    left = n
    while left > 0:
        share = tl.where(left % 2 == 1, share + power * (1.0 - share), share)
        power = power * (2.0 - power)
        left = left // 2
    return share
