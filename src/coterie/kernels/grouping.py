"""Targets made usable and tokens put in their order, in two launches: every token counts those that come before it.

T² comparisons of small numbers take less time than the launches of a sort, as long as T is a batch's size.

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

LIMIT = 16384  # tokens; a sort is faster beyond
QUERIES = 16  # tokens, or cluster boundaries, ranked by one program
KEYS = 512  # tokens they are compared with at a time; a multiple of QUERIES
BLOCK = 256


@torch.no_grad()
def prepare(target: Tensor, partition: Partition, ignore_index: int, tally: Tensor) -> tuple[Tensor, Grouping]:
    """As `coterie.loss.grouping.prepare`, to the last bit."""
    word, place = _usable(tally, target, partition.position, ignore_index)
    return word, Grouping(*rank(place, partition.offsets))


def rank(place: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens by their places (T,) int32: the tokens in order, their places, and where those of each offset start."""
    if place.shape[0] > LIMIT:
        ordered, order = place.long().sort(stable=True)
        return order, ordered, torch.searchsorted(ordered, offsets)
    order, ordered, starts = _group(place, offsets)
    return order, ordered, starts


def _check_targets(tally: Tensor, target: Tensor, position: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """The targets with -1 for those left out, (T,), and where they stand, (T,) int32; V for those left out."""
    target = target.contiguous()
    word, place = torch.empty_like(target), torch.empty_like(target, dtype=torch.int32)
    n_tokens = target.shape[0]
    if n_tokens:
        with torch.cuda.device_of(target):
            _check[(n_tiles(n_tokens, BLOCK),)](
                target, position, word, place, tally, n_tokens,
                IGNORE=ignore_index, N_WORDS=position.shape[0], BLOCK=BLOCK,
            )  # fmt: skip
    return word, place


def _check_targets_fake(tally: Tensor, target: Tensor, position: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    # The layout of the contiguous copy, whatever the target's.
    return target.new_empty(target.shape), target.new_empty(target.shape, dtype=torch.int32)


def _rank_tokens(place: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """order (T,), place (T,) and starts (C + 1,), from place (T,) int32 and offsets (C + 1,)."""
    n_tokens = place.shape[0]
    order, ordered = (torch.empty(n_tokens, dtype=torch.int64, device=place.device) for _ in range(2))
    starts = torch.empty_like(offsets)
    if n_tokens == 0:
        return order, ordered, starts.zero_()
    programs = n_tiles(n_tokens, QUERIES) + n_tiles(starts.numel(), QUERIES)
    with torch.cuda.device_of(place):
        _rank[(programs,)](
            place, offsets, order, ordered, starts, n_tokens,
            N_STARTS=starts.numel(), QUERIES=QUERIES, KEYS=KEYS,
        )  # fmt: skip
    return order, ordered, starts


def _rank_tokens_fake(place: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    order, ordered = (place.new_empty(place.shape, dtype=torch.int64) for _ in range(2))
    return order, ordered, torch.empty_like(offsets)


_usable = Operator("usable", _check_targets, _check_targets_fake, mutates_args=("tally",))
_group = Operator("group", _rank_tokens, _rank_tokens_fake)


@triton.jit
def _check(
    target, position, word, place, tally, n_tokens, IGNORE: tl.constexpr, N_WORDS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = token < n_tokens
    given = tl.load(target + token, mask=inside, other=0)
    ignored = given == IGNORE
    usable = (given >= 0) & (given < N_WORDS) & ~ignored
    tl.store(word + token, tl.where(usable, given, -1), mask=inside)
    # V for those left out: no place is above it.
    tl.store(place + token, tl.load(position + given, mask=inside & usable, other=N_WORDS), mask=inside)
    bad = inside & ~usable & ~ignored
    n_bad = tl.sum(bad.to(tl.int64), 0)
    if n_bad > 0:
        tl.atomic_add(tally, n_bad)
        tl.store(tally + 1, tl.max(tl.where(bad, given, -(2**63)), 0))


@triton.jit
def _rank(
    place, offsets, order, ordered, starts, n_tokens,
    N_STARTS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The first programs place QUERIES tokens each, the others find where QUERIES clusters start."""
    program = tl.program_id(0)
    token_programs = tl.cdiv(n_tokens, QUERIES)
    # Tokens past the last have no place at all: they are before nobody.
    if program < token_programs:
        token = program * QUERIES + tl.arange(0, QUERIES)
        key = tl.load(place + token, mask=token < n_tokens, other=0)
        # Of the tokens with the same place, the earlier ones come before: in whole chunks of earlier tokens "not
        # after" is the question, in whole chunks of later ones "before", and only where both meet the token counts.
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
