"""Checks targets and sorts tokens in two launches, by a counting sort: every token counts those that come before it.

For T tokens of a batch, T² comparisons of small numbers take less time than the launches of a sort.

Shapes: T tokens, V words, C clusters.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.clustering.partition import Partition
from coterie.kernels.operator import Operator
from coterie.kernels.sizes import n_tiles
from coterie.loss.grouping import Grouping

LIMIT = 16384  # with more tokens, a sort is faster
QUERIES = 16  # tokens, or cluster boundaries, that one program ranks
KEYS = 512  # tokens to compare them with at a time; a multiple of QUERIES
BLOCK = 256


def prepare(target: Tensor, partition: Partition, ignore_index: int, tally: Tensor) -> Grouping:
    """The same as `coterie.loss.grouping.prepare`, to the last bit."""
    return Grouping(_grouped(tally, target, partition.position, partition.offsets, ignore_index), target.shape[0])


def _group(tally: Tensor, target: Tensor, position: Tensor, offsets: Tensor, ignore_index: int) -> Tensor:
    """The table of a `Grouping`, (3 T + C + 2,), for targets (T,)."""
    target, n_tokens, n_starts = target.contiguous(), target.shape[0], offsets.shape[0]
    table = torch.empty(3 * n_tokens + n_starts, dtype=torch.int64, device=target.device)
    if n_tokens == 0:
        return table.zero_()
    place = torch.empty(n_tokens, dtype=torch.int32, device=target.device)
    with torch.cuda.device_of(target):
        _check[(n_tiles(n_tokens, BLOCK),)](
            target, position, table, place, tally, n_tokens,
            IGNORE=ignore_index, N_WORDS=position.shape[0], N_STARTS=n_starts, BLOCK=BLOCK,
        )  # fmt: skip
        _order(place, offsets, table)
    return table


def _group_fake(tally: Tensor, target: Tensor, position: Tensor, offsets: Tensor, ignore_index: int) -> Tensor:
    return offsets.new_empty(3 * target.shape[0] + offsets.shape[0])


_grouped = Operator("group", _group, _group_fake, mutates_args=("tally",))


def rank(place: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sorts tokens by `place` (T,) int32: the tokens, their places, and where the tokens of each cluster start."""
    n_tokens = place.shape[0]
    table = torch.empty(2 * n_tokens + offsets.shape[0], dtype=torch.int64, device=place.device)
    with torch.cuda.device_of(place):
        _order(place, offsets, table)
    order, ordered, starts = table.split((n_tokens, n_tokens, offsets.shape[0]))
    return order, ordered, starts


def _order(place: Tensor, offsets: Tensor, table: Tensor) -> None:
    """Writes the order and the sorted places, both (T,), and starts (C + 2,) to the beginning of the table."""
    n_tokens, n_starts = place.shape[0], offsets.shape[0]
    if n_tokens > LIMIT:
        ordered, order = place.long().sort(stable=True)
        torch.cat((order, ordered, torch.searchsorted(ordered, offsets)), out=table[: 2 * n_tokens + n_starts])
        return
    programs = n_tiles(n_tokens, QUERIES) + n_tiles(n_starts, QUERIES)
    _rank[(programs,)](place, offsets, table, n_tokens, N_STARTS=n_starts, QUERIES=QUERIES, KEYS=KEYS)


@triton.jit
def _check(
    target, position, table, place, tally, n_tokens,
    IGNORE: tl.constexpr, N_WORDS: tl.constexpr, N_STARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = token < n_tokens
    given = tl.load(target + token, mask=inside, other=0)
    ignored = given == IGNORE
    usable = (given >= 0) & (given < N_WORDS) & ~ignored
    tl.store(table + 2 * n_tokens + N_STARTS + token, tl.where(usable, given, -1), mask=inside)
    # Ignored tokens get place V, which sorts last.
    tl.store(place + token, tl.load(position + given, mask=inside & usable, other=N_WORDS), mask=inside)
    bad = inside & ~usable & ~ignored
    n_bad = tl.sum(bad.to(tl.int64), 0)
    if n_bad > 0:
        tl.atomic_add(tally, n_bad)
        tl.store(tally + 1, tl.max(tl.where(bad, given, -(2**63)), 0))


@triton.jit
def _rank(
    place, offsets, table, n_tokens,
    N_STARTS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The first programs rank QUERIES tokens each, the others find where QUERIES clusters start."""
    order, ordered, starts = table, table + n_tokens, table + 2 * n_tokens
    program = tl.program_id(0)
    token_programs = tl.cdiv(n_tokens, QUERIES)
    # Tokens past the last are given the largest place, so that they come before none.
    if program < token_programs:
        token = program * QUERIES + tl.arange(0, QUERIES)
        key = tl.load(place + token, mask=token < n_tokens, other=0)
        # Among tokens with the same place, earlier ones come first. So chunks of earlier tokens are compared by <=,
        # chunks of later ones by <, and only the chunk with the token itself by both.
        meet = program * QUERIES // KEYS * KEYS
        counts = tl.zeros((QUERIES, KEYS), tl.int32)
        for first in range(0, meet, KEYS):
            other = tl.load(place + first + tl.arange(0, KEYS))
            counts += (other[None, :] <= key[:, None]).to(tl.int32)
        at = meet + tl.arange(0, KEYS)
        other = tl.load(place + at, mask=at < n_tokens, other=2**31 - 1)
        earlier = at[None, :] < token[:, None]
        counts += ((other[None, :] < key[:, None]) | (earlier & (other[None, :] == key[:, None]))).to(tl.int32)
        for first in range(meet + KEYS, n_tokens, KEYS):
            at = first + tl.arange(0, KEYS)
            other = tl.load(place + at, mask=at < n_tokens, other=2**31 - 1)
            counts += (other[None, :] < key[:, None]).to(tl.int32)
        rank = tl.sum(counts, 1)
        tl.store(order + rank, token, mask=token < n_tokens)
        tl.store(ordered + rank, key, mask=token < n_tokens)
    else:
        cluster = (program - token_programs) * QUERIES + tl.arange(0, QUERIES)
        bound = tl.load(offsets + cluster, mask=cluster < N_STARTS, other=0).to(tl.int32)
        counts = tl.zeros((QUERIES, KEYS), tl.int32)
        for first in range(0, n_tokens, KEYS):
            at = first + tl.arange(0, KEYS)
            other = tl.load(place + at, mask=at < n_tokens, other=2**31 - 1)
            counts += (other[None, :] < bound[:, None]).to(tl.int32)
        tl.store(starts + cluster, tl.sum(counts, 1), mask=cluster < N_STARTS)
