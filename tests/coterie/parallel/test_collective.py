"""Several processes train one layer: they move its words alike, whatever DistributedDataParallel does, or stop."""

import copy
import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from coterie import SelfOrganizedSoftmax
from tests.processes import processes

WIDTH, N, EACH = 8, 40, 12
COUNTS = [400 // (n + 1) + 1 for n in range(N)]


class Model(nn.Module):
    """A linear map and the layer."""

    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = SelfOrganizedSoftmax(
            WIDTH, N, **{"counts": COUNTS, "reorganize_every": 4, "own_words": 3, **options}
        )

    def forward(self, x, target):
        return self.head(self.body(x), target).loss


def batch(step, rank, rows=EACH):
    """Targets follow from the inputs, so that there is something to learn."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    target = torch.multinomial(torch.tensor(COUNTS, dtype=torch.float), rows, True, generator=generator)
    means = torch.randn(N, WIDTH, generator=torch.Generator().manual_seed(7))
    return means[target] + 0.3 * torch.randn(rows, WIDTH, generator=generator), target


def clusters(head):
    return head.partition.cluster_of.tolist()


def of_all(value):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def assert_all_alike(head):
    assert len({str(seats) for seats in of_all(clusters(head))}) == 1
    assert len({str(counts) for counts in of_all(head.counts.tolist())}) == 1


@pytest.fixture(scope="module")
def in_two(tmp_path_factory):
    with processes(2, tmp_path_factory.mktemp("two")) as run:
        yield run


@pytest.mark.parametrize("n", [2, 3])
def test_processes_move_words_alike_and_lose_what_one_process_loses(n, in_two, tmp_path):
    if n == 2:
        return in_two(_as_one)
    with processes(n, tmp_path) as run:
        run(_as_one)


def _as_one(rank, size):
    for options in ({}, {"statistic": "table", "score": "paper"}, {"reorganize_every": "auto"}):
        alone, model = Model(**options), Model(**options)
        single = torch.distributed.new_group([rank], use_local_synchronization=True)
        alone.head.process_group = single
        shared = DistributedDataParallel(model)
        mine, ours = (torch.optim.SGD(m.parameters(), 0.3) for m in (alone, model))
        moves = 0
        for step in range(24):
            parts = [batch(step, other) for other in range(size)]
            expected = alone(torch.cat([x for x, _ in parts]), torch.cat([t for _, t in parts]))
            loss = shared(*parts[rank])
            mean = sum(of_all(loss.item())) / size
            assert mean == pytest.approx(expected.item(), rel=1e-5 if moves == 0 else 0.05)
            for one, optimizer in ((expected, mine), (loss, ours)):
                optimizer.zero_grad()
                one.backward()
                optimizer.step()
            first, second = alone.head.step(), model.head.step()
            assert (first is None) == (second is None)
            if second is not None:
                moves += 1
                assert_all_alike(model.head)
        assert moves > 1
        # Nearly all words sit where one process seats them.
        same = sum(a == b for a, b in zip(clusters(alone.head), clusters(model.head), strict=True))
        assert same >= 0.7 * N, same


@pytest.mark.parametrize("broadcast", [True, False])
def test_whatever_buffers_are_broadcast(broadcast, in_two):
    in_two(_broadcast, broadcast)


def _broadcast(rank, size, broadcast):
    model = Model(counts=None, own_words=None)
    shared = DistributedDataParallel(model)
    shared.broadcast_buffers = broadcast
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    seen = torch.zeros(N, dtype=torch.int64)
    for step in range(16):
        x, target = batch(step, rank, EACH + 3 * rank)  # batches of other sizes
        with shared.no_sync() if step % 2 == 0 else _nothing():
            shared(x, target).backward()
        seen += torch.bincount(target, minlength=N)
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
        if model.head.step() is not None:
            assert_all_alike(model.head)
            assert model.head.counts.tolist() == [sum(column) for column in zip(*of_all(seen.tolist()), strict=True)]
    assert not model.head.partition.random


class _nothing:
    def __enter__(self):
        pass

    def __exit__(self, *exception):
        pass


def test_what_is_remembered_is_not_sent_at_every_step(in_two):
    in_two(_sent)


def _sent(rank, size):
    shared = DistributedDataParallel(Model())
    sent = sum(buffer.numel() for buffer in shared.modules_buffers)
    assert sent < 8 * N
    assert sent < shared.module.head.statistic.total.numel()


def test_processes_that_differ_stop_with_a_sentence(in_two):
    in_two(_differ)


def _differ(rank, size):
    for options, name in (
        ({"own_words": 3 + 9 * rank}, "places for words of their own"),
        ({"partition": None, "gamma": 1.5}, "partition"),
    ):
        model = Model(**options)
        if name == "partition" and rank:
            model.head.partition.assign_(model.head.partition.cluster_of.roll(1))
        model(*batch(0, rank))
        before = copy.deepcopy(model.head.state_dict())
        with pytest.raises(RuntimeError, match=f"differ in their {name} .process 0: "):
            model.head.reorganize()
        for key, value in model.head.state_dict().items():
            assert torch.equal(value, before[key]), key


def test_a_group_of_its_own_and_a_copy(in_two):
    in_two(_alone)


def _alone(rank, size):
    group = dist.new_group([rank], use_local_synchronization=True)
    model = Model(process_group=group)
    for step in range(4 + rank):  # alone, it need not wait for the other
        model(*batch(step, rank)).backward()
        model.head.step()
    assert model.head.process_group is group
    assert copy.deepcopy(model.head).process_group is None
    assert math.isfinite(model(*batch(0, rank)).item())


def test_rare_words_are_remembered_as_in_the_paper_too(in_two):
    in_two(_rare)


def _rare(rank, size):
    torch.manual_seed(0)
    head = SelfOrganizedSoftmax.as_in_paper(WIDTH, N, [3] * N)
    for step in range(6):
        x, target = batch(step, rank)
        head(x, target)
        assert head.statistic.seen[target].all()
