"""Tokens in the order of their clusters: the kernel against the sort."""

import pytest
import torch

pytest.importorskip("triton")

from coterie.kernels import grouping as kernel
from coterie.loss import grouping
from tests.coterie.kernels.batches import DEVICE, N_WORDS, seats

pytestmark = pytest.mark.usefixtures("interpreter", "new_memory_is_nan")


def prepared(way, target, partition):
    tally = torch.zeros(5, dtype=torch.int64, device=DEVICE)
    groups = way(target, partition, -100, tally)
    return groups.word, groups.table, tally


@pytest.mark.parametrize("tokens", [0, 1, 31, 32, 33, 300])
@pytest.mark.parametrize("different", [1, 4, N_WORDS])
@pytest.mark.parametrize("limit", [kernel.LIMIT, 8])
def test_grouping_is_the_sort(tokens, different, limit, monkeypatch):
    monkeypatch.setattr(kernel, "LIMIT", limit)
    for seed in range(3):
        g = torch.Generator().manual_seed(seed)
        partition = seats(g)
        names = torch.randperm(N_WORDS, generator=g)[:different]
        target = names[torch.randint(0, different, (tokens,), generator=g)]
        target[torch.rand(tokens, generator=g) < 0.2 * seed] = -100
        target = target.to(DEVICE)
        ways = (kernel.prepare, grouping.prepare)
        for ours, sort in zip(*(prepared(way, target, partition) for way in ways), strict=True):
            assert ours.dtype == sort.dtype
            assert torch.equal(ours, sort)


@pytest.mark.parametrize("bad", [N_WORDS, -1, -(2**40), 2**40])
def test_targets_out_of_range_are_left_out_and_tallied(bad):
    target = torch.tensor([3, bad, -100, bad, 5], device=DEVICE)
    partition = seats()
    ours, plain = (prepared(way, target, partition) for way in (kernel.prepare, grouping.prepare))
    assert ours[0].tolist() == [3, -1, -1, -1, 5]
    assert ours[-1].tolist() == [2, bad, 0, 0, 0]
    for x, y in zip(ours, plain, strict=True):
        assert torch.equal(x, y)
