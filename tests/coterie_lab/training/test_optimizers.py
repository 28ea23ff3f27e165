"""The optimizers against torch's own, clipping by what the gradients are divided by, and learning rates over a run."""

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn

from coterie_lab.training import optimizers
from coterie_lab.training.optimizers import Adagrad, Adam, factor
from tests.corpora import small

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


def train(model, optimizer, steps=5, **given):
    torch.manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(8, 7, device=next(model.parameters()).device)
        model(x).square().sum().backward()
        optimizer.step(**given)


TORCHS = {
    "adam": (Adam, {}, torch.optim.Adam, {}),
    "adamw": (Adam, {"decoupled": True}, torch.optim.AdamW, {}),
    "adagrad": (Adagrad, {"accumulator": 1e-5}, torch.optim.Adagrad, {"initial_accumulator_value": 1e-5}),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("name", TORCHS)
def test_each_is_torchs(device, decay, name):
    kind, options, torchs, its_options = TORCHS[name]
    ours = nn.Linear(7, 5).to(device)
    theirs = copy.deepcopy(ours)
    train(ours, kind(ours.parameters(), lr=0.02, weight_decay=decay, **options))
    train(theirs, torchs(theirs.parameters(), lr=0.02, weight_decay=decay, **its_options))
    torch.testing.assert_close(list(ours.parameters()), list(theirs.parameters()))


def test_rowwise_adagrad_keeps_one_sum_a_row():
    weight = nn.Parameter(torch.randn(4, 6))
    optimizer = Adagrad([{"params": [weight], "rowwise": True}], lr=0.5, accumulator=0.25)
    expected, total = weight.detach().clone(), torch.full((4,), 0.25)
    for _ in range(3):
        weight.grad = torch.randn(4, 6)
        weight.grad[2] = 0
        total += (weight.grad**2).mean(1)
        expected -= 0.5 * weight.grad / total.sqrt()[:, None]
        optimizer.step()
    torch.testing.assert_close(weight.detach(), expected)
    assert optimizer.state[weight]["sum"].shape == (4, 1)


@pytest.mark.parametrize(("kind", "rowwise"), [(Adam, False), (Adagrad, False), (Adagrad, True)])
def test_a_scale_divides_the_gradients_of_clipped_groups_alone(kind, rowwise):
    start = nn.Sequential(nn.Linear(7, 7), nn.Linear(7, 5))
    options = {"rowwise": rowwise} if rowwise else {}
    # A start above nothing, so that the scale of a gradient matters to an Adagrad.
    extra = {"accumulator": 1.0} if kind is Adagrad else {"eps": 1.0}

    def made(model):
        free = {"params": [model[0].weight], "clipped": False, **options}
        return kind([free, {"params": [model[1].weight], **options}], lr=0.1, **extra)

    scaled, by_hand = copy.deepcopy(start), copy.deepcopy(start)
    train(scaled, made(scaled), steps=1, scale=torch.tensor(4.0))
    torch.manual_seed(1)
    optimizer = made(by_hand)
    by_hand(torch.randn(8, 7)).square().sum().backward()
    by_hand[1].weight.grad /= 4
    optimizer.step()
    torch.testing.assert_close(scaled[0].weight, by_hand[0].weight)
    torch.testing.assert_close(scaled[1].weight, by_hand[1].weight)
    assert not torch.allclose(scaled[1].weight, start[1].weight)


@pytest.mark.parametrize("name", ["adagrad", "adam", "adamw"])
def test_learning_rates_follow_their_group_and_a_state_is_resumed(name):
    weights = [nn.Parameter(torch.randn(3, 2)) for _ in range(2)]
    settings = small(optimizer=name, learning_rate=0.2)

    def made(weights):
        wanted = [{"params": weights[:1], "rowwise": True}, {"params": weights[1:], "factor": 0.1}, {"params": []}]
        return optimizers.build(settings, wanted)

    def step(optimizer, weights):
        for weight in weights:
            weight.grad = weight.detach() + 1
        optimizer.step()

    optimizer = made(weights)
    optimizer.set_learning_rate(0.5)
    assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx([0.1, 0.01])
    step(optimizer, weights)
    copied = [nn.Parameter(weight.detach().clone()) for weight in weights]
    again = made(copied)
    again.resume(copy.deepcopy(optimizer.state_dict()))
    for one in (optimizer, again):
        one.set_learning_rate(0.25)
        assert [float(group["lr"]) for group in one.param_groups] == pytest.approx([0.05, 0.005])
    step(optimizer, weights)
    step(again, copied)
    assert all(map(torch.equal, weights, copied))


def test_what_is_large_goes_through_our_kernel_on_a_gpu_only(monkeypatch):
    monkeypatch.setattr(optimizers, "LARGE", 1)
    assert not optimizers.is_large(torch.zeros(10))
    if torch.cuda.is_available():
        assert optimizers.is_large(torch.zeros(10, device="cuda"))
        assert not optimizers.is_large(torch.zeros(10, device="cuda", dtype=torch.float64))


def test_halving_halves_each_epoch_of_the_second_half():
    by_epoch = [factor("halving", 10 * epoch + 9, 50, 10) for epoch in range(5)]
    assert by_epoch == [1, 1, 1, 0.5, 0.25]
    assert [factor("halving", epoch, 4, 1) for epoch in range(4)] == [1, 1, 0.5, 0.25]
    assert factor("halving", 5, 10, 10) == 1


def test_cosine_and_linear_fall_to_nothing_after_the_warm_up():
    for schedule in ("cosine", "linear"):
        found = [factor(schedule, step, 100, 50, warmup=10) for step in range(101)]
        assert found[:10] == pytest.approx([n / 10 for n in range(1, 11)])
        assert found[10] == 1
        assert all(a > b for a, b in pairwise(found[10:]))
        assert found[100] == pytest.approx(0)
        assert found[55] == pytest.approx(0.5)
