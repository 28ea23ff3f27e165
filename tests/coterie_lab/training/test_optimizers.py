"""The optimizers against torch's own, and clipping by what the gradients are divided by."""

import copy

import pytest
import torch
from torch import nn

from coterie_lab.training import adam as adam_module
from coterie_lab.training.adagrad import Adagrad
from coterie_lab.training.adam import Adam

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


def train(model, optimizer, steps=5, **given):
    torch.manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(8, 7, device=next(model.parameters()).device)
        model(x).square().sum().backward()
        optimizer.step(**given)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_is_torchs(device, decay, decoupled):
    torch.manual_seed(0)
    ours = nn.Linear(7, 5).to(device)
    theirs = copy.deepcopy(ours)
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    train(ours, Adam(ours.parameters(), lr=0.02, weight_decay=decay, decoupled=decoupled))
    train(theirs, kind(theirs.parameters(), lr=0.02, weight_decay=decay))
    torch.testing.assert_close(list(ours.parameters()), list(theirs.parameters()))


def test_adam_goes_on_from_its_state():
    torch.manual_seed(0)
    whole = nn.Linear(7, 5)
    parted = copy.deepcopy(whole)
    a, b = Adam(whole.parameters(), lr=0.02), Adam(parted.parameters(), lr=0.02)
    train(whole, a)
    train(whole, a)
    train(parted, b)
    c = Adam(parted.parameters(), lr=0.02)
    c.load_state_dict(b.state_dict())
    train(parted, c)
    assert torch.equal(whole.weight, parted.weight)


@pytest.mark.parametrize("kind", [Adam, Adagrad])
@pytest.mark.parametrize("rowwise", [False, True])
def test_a_scale_divides_the_gradients_of_clipped_groups_alone(kind, rowwise):
    if kind is Adam and rowwise:
        pytest.skip("one sum a row is Adagrad's")
    torch.manual_seed(0)
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


def test_what_is_large_goes_through_our_kernel_on_a_gpu_only(monkeypatch):
    monkeypatch.setattr(adam_module, "LARGE", 1)
    assert not adam_module._large(torch.zeros(10))
    if torch.cuda.is_available():
        assert adam_module._large(torch.zeros(10, device="cuda"))
        assert not adam_module._large(torch.zeros(10, device="cuda", dtype=torch.float64))
