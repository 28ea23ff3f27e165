"""Tokens put in the order of their targets, in one launch: every token counts the tokens that come before it.

T² comparisons of small numbers take less time than the launches of a sort, as long as T is a batch's size.

Shapes: T tokens, V words, C clusters.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie import grouping
from coterie.grouping import Grouping
from coterie.partition import Partition

LIMIT = 16384  # tokens; a sort is faster beyond
QUERIES = 32  # tokens, or cluster boundaries, ranked by one program
KEYS = 256  # tokens they are compared with at a time


@torch.no_grad()
def group(target: Tensor, partition: Partition) -> Grouping:
    """As `coterie.grouping.group`, to the last bit."""
    if target.shape[0] > LIMIT:
        return grouping.group(target, partition)
    return Grouping(*_group(target, partition.position, partition.offsets))


@torch.library.custom_op("coterie::group", mutates_args=())
def _group(target: Tensor, position: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """order (T,), place (T,) and starts (C + 1,), from target (T,), position (V,) and offsets (C + 1,)."""
    n_tokens = target.shape[0]
    target = target.contiguous()
    order, place, starts = torch.empty_like(target), torch.empty_like(target), torch.empty_like(offsets)
    if n_tokens == 0:
        return order, place, starts.zero_()
    programs = triton.cdiv(n_tokens, QUERIES) + triton.cdiv(starts.numel(), QUERIES)
    with torch.cuda.device_of(target):
        _rank[(programs,)](
            target, position, offsets, order, place, starts, n_tokens, position.shape[0], starts.numel(),
            QUERIES=QUERIES, KEYS=KEYS,
        )  # fmt: skip
    return order, place, starts


@_group.register_fake
def _(target: Tensor, position: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # The layout of the contiguous copy, whatever the target's.
    return target.new_empty(target.shape), target.new_empty(target.shape), torch.empty_like(offsets)


@triton.jit
def _rank(
    target, position, offsets, order, place, starts, n_tokens, n_words, n_starts,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The first programs place QUERIES tokens each, the others find where QUERIES clusters start."""
    program = tl.program_id(0)
    token_programs = tl.cdiv(n_tokens, QUERIES)
    if program < token_programs:
        token = program * QUERIES + tl.arange(0, QUERIES)
        key = _keys(target, position, token, n_tokens, n_words)
        rank = _count_before(key, token, target, position, n_tokens, n_words, KEYS)
        tl.store(order + rank, token, mask=token < n_tokens)
        tl.store(place + rank, key, mask=token < n_tokens)
    else:
        cluster = (program - token_programs) * QUERIES + tl.arange(0, QUERIES)
        bound = tl.load(offsets + cluster, mask=cluster < n_starts, other=0).to(tl.int32)
        # As if the boundary were token 0: no token with the same key comes before it.
        rank = _count_before(bound, tl.zeros_like(bound), target, position, n_tokens, n_words, KEYS)
        tl.store(starts + cluster, rank, mask=cluster < n_starts)


@triton.jit
def _keys(target, position, token, n_tokens, n_words):
    """Where the tokens' targets stand; V for those left out, and past the last token: no key is above it."""
    word = tl.load(target + token, mask=token < n_tokens, other=-1)
    return tl.load(position + word, mask=word >= 0, other=n_words).to(tl.int32)


@triton.jit
def _count_before(key, token, target, position, n_tokens, n_words, KEYS: tl.constexpr):
    """How many tokens have a smaller key, or the same key and an earlier place in the batch: (Q,), (Q,) → (Q,)."""
    count = tl.zeros_like(key)
    for first in range(0, n_tokens, KEYS):
        other = first + tl.arange(0, KEYS)
        other_key = _keys(target, position, other, n_tokens, n_words)
        earlier = (other[None, :] < token[:, None]).to(tl.int32)
        count += tl.sum((other_key[None, :] < key[:, None] + earlier).to(tl.int32), 1)
    return count
