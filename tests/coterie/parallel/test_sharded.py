"""The layer under `fully_shard`: it trains, reorganises and answers as in one process, and its checkpoints travel."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import fully_shard

from coterie import SelfOrganizedSoftmax
from tests.coterie.parallel.test_collective import COUNTS, WIDTH, Model, N, assert_all_alike, batch, of_all
from tests.processes import processes


@pytest.fixture(scope="module")
def in_two(tmp_path_factory):
    with processes(2, tmp_path_factory.mktemp("sharded")) as run:
        yield run


def sharded(part="whole", **options):
    model = Model(**options)
    if part == "apart":
        fully_shard(model.head)
    return fully_shard(model)


def train(model, rank, size, steps, first=0, optimizer=None):
    """One process's share of each batch; without FSDP the whole batch."""
    optimizer = optimizer or torch.optim.Adam(model.parameters(), 0.05)
    losses = []
    for step in range(first, first + steps):
        parts = [batch(step, other) for other in range(size)]
        x, target = parts[rank] if rank is not None else (torch.cat([p[n] for p in parts]) for n in (0, 1))
        loss = model(x, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.head.step()
        losses.append(loss.item())
    return losses


def alone_group(rank):
    return dist.new_group([rank], use_local_synchronization=True)


@pytest.mark.parametrize("part", ["whole", "apart"])
def test_it_learns_and_answers_as_one_process(part, in_two):
    in_two(_learns, part)


def _learns(rank, size, part):
    model, one = sharded(part), Model(process_group=alone_group(rank))
    ours, theirs = train(model, rank, size, 3), train(one, None, size, 3)
    assert [sum(values) / size for values in zip(*of_all(ours), strict=True)] == pytest.approx(theirs, rel=1e-4)
    assert_answers(model.head, one.head)
    train(model, rank, size, 5, 3)
    assert_all_alike(model.head)
    assert not model.head.partition.random


def assert_answers(head, expected, atol=1e-4):
    hidden = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(head.log_prob(hidden), expected.log_prob(hidden), rtol=0, atol=atol)
    torch.testing.assert_close(head.cluster_log_prob(hidden), expected.cluster_log_prob(hidden), rtol=0, atol=atol)
    assert torch.equal(head.predict(hidden), expected.predict(hidden))
    assert torch.equal(head.topk(hidden, 5)[1], expected.topk(hidden, 5)[1])
    assert torch.equal(head.extend(hidden, torch.zeros(6), 3)[2], expected.extend(hidden, torch.zeros(6), 3)[2])
    drawn = (h.sample(hidden, generator=torch.Generator().manual_seed(2)) for h in (head, expected))
    assert torch.equal(*drawn)
    torch.testing.assert_close(head.embed(torch.arange(9)), expected.embed(torch.arange(9)), rtol=0, atol=atol)


def test_gradients_outside_of_a_forward_are_averaged_too(in_two):
    in_two(_gradients)


def _gradients(rank, size):
    model, one = sharded(), Model()
    hidden = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(rank))
    every = torch.cat([torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(r)) for r in range(size)])
    (-model.head.log_prob(hidden)[:, 7].mean() + model.head.embed(torch.tensor([5])).sum()).backward()
    (-one.head.log_prob(every)[:, 7].mean() + one.head.embed(torch.tensor([5])).sum()).backward()
    for name, parameter in one.head.named_parameters():
        found = model.head.get_parameter(name).grad.full_tensor()
        torch.testing.assert_close(found, parameter.grad, rtol=1e-4, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}")


def test_words_of_their_own_are_chosen_while_sharded(in_two):
    in_two(_chooses)


def _chooses(rank, size):
    model = sharded(counts=None, own_words=4)
    train(model, rank, size, 5)
    assert len(model.head.partition.own) == 4
    assert_all_alike(model.head)
    assert model.head.log_prob(torch.zeros(WIDTH)).exp().sum().item() == pytest.approx(1, abs=1e-5)


def test_a_checkpoint_travels_between_one_process_and_several(in_two, tmp_path):
    in_two(_travels, tmp_path)
    one = Model()
    state = get_model_state_dict(one)
    dcp.load(state, checkpoint_id=tmp_path / "two", no_dist=True)
    set_model_state_dict(one, state)
    expected = torch.load(tmp_path / "answers.pt")
    torch.testing.assert_close(one.head.log_prob(torch.eye(WIDTH)), expected, rtol=0, atol=1e-5)
    assert one.head.updates == 8
    with processes(3, tmp_path) as run:
        run(_arrives, tmp_path)


def _travels(rank, size, folder):
    model = sharded()
    train(model, rank, size, 8)
    dcp.save(get_model_state_dict(model), checkpoint_id=folder / "two")
    answers = model.head.log_prob(torch.eye(WIDTH))
    if rank == 0:
        torch.save(answers.detach(), folder / "answers.pt")
    # From one process's whole state to all of them.
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    again = sharded()
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(again, whole if rank == 0 else {}, options=options)
    torch.testing.assert_close(again.head.log_prob(torch.eye(WIDTH)), answers)
    assert again.head.updates == model.head.updates
    assert_all_alike(again.head)


def _arrives(rank, size, folder):
    model = sharded()
    state = get_model_state_dict(model)
    dcp.load(state, checkpoint_id=folder / "two")
    set_model_state_dict(model, state)
    expected = torch.load(folder / "answers.pt")
    torch.testing.assert_close(model.head.log_prob(torch.eye(WIDTH)), expected, rtol=0, atol=1e-5)
    train(model, rank, size, 4, 8)
    assert_all_alike(model.head)


def test_built_on_meta_sharded_and_filled(in_two):
    in_two(_on_meta)


def _on_meta(rank, size):
    with torch.device("meta"):
        model = nn.Sequential(SelfOrganizedSoftmax(WIDTH, N, COUNTS, reorganize_every=4))
    fully_shard(model)
    model.to_empty(device="cpu")
    torch.manual_seed(3)
    model[0].reset_parameters()
    assert model[0].log_prob(torch.zeros(WIDTH)).exp().sum().item() == pytest.approx(1, abs=1e-5)
    assert_all_alike(model[0])
