"""The loss and its gradients are those of its definition, word by word."""

import pytest
import torch
import torch.nn.functional as F

from tests.layers import SHAPES, WIDTH, make
from tests.reference import dense

TORCH_BACKENDS = ("reference", "torch")


@pytest.mark.parametrize("backend", TORCH_BACKENDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_loss_and_every_gradient_equal_the_dense_reference(shape, backend):
    head = SHAPES[shape](dtype=torch.float64, backend=backend)
    hidden = torch.randn(13, WIDTH, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, head.n_classes, (13,))
    inputs = [hidden, *head.parameters()]

    expected_output = dense.log_prob(head, hidden).gather(1, target[:, None]).squeeze(1)
    expected = torch.autograd.grad(-expected_output.mean(), inputs, allow_unused=True, materialize_grads=True)
    out = head(hidden, target)
    actual = torch.autograd.grad(out.loss, inputs)

    assert torch.allclose(out.output, expected_output, atol=1e-9, rtol=0)
    assert torch.allclose(out.loss, -expected_output.mean(), atol=1e-9, rtol=0)
    for got, want in zip(actual, expected, strict=True):
        assert torch.allclose(got, want, atol=1e-9, rtol=0)


OWN_WORDS = {"none": 0, "one": 1, "√V": 7, "V - 2": 51, "all": 53, "by hand": [40, 3, 52, 0, 17]}


@pytest.mark.parametrize("backend", TORCH_BACKENDS)
@pytest.mark.parametrize("targets", ["any", "all stand alone", "none stands alone"])
@pytest.mark.parametrize(
    "options",
    [{}, {"bias": False, "projection": False}, {"bias": False}, {"activation": "tanh"}, {"activation": "gelu"}],
    ids=str,
)
@pytest.mark.parametrize("own_words", OWN_WORDS)
def test_words_that_stand_alone_are_clusters_of_one(own_words, options, targets, backend):
    """They too may be words without counts, and their vectors get gradients as words and as columns of the root."""
    counts = torch.randint(0, 100, (53,))
    counts[[0, 17, 30]] = 0
    own_words = OWN_WORDS[own_words]
    head = make(counts=counts, own_words=own_words, dtype=torch.float64, backend=backend, **options)
    own = head.partition.own
    assert len(own) == (own_words if isinstance(own_words, int) else len(own_words))
    hidden = torch.randn(40, WIDTH, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 53, (40,))
    alone = torch.isin(target, own)
    if targets != "any":
        target[alone if targets == "none stands alone" else ~alone] = -100
    target[::11] = -100
    used = target != -100

    log_p = dense.log_prob(head, hidden)
    torch.testing.assert_close(log_p.exp().sum(1), torch.ones(40, dtype=torch.float64))
    expected_output = torch.where(used, log_p.gather(1, target.clamp(min=0)[:, None]).squeeze(1), 0.0)
    expected_loss = -expected_output.sum() / used.sum().clamp(min=1)
    inputs = [hidden, *head.parameters()]
    expected = torch.autograd.grad(expected_loss, inputs, allow_unused=True, materialize_grads=True)
    out = head(hidden, target)
    torch.testing.assert_close((out.output, out.loss), (expected_output, expected_loss), rtol=0, atol=1e-9)
    torch.testing.assert_close(torch.autograd.grad(out.loss, inputs), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("backend", TORCH_BACKENDS)
@pytest.mark.parametrize("shape", ["default", "empty clusters", "own words", "own words, relu", "all own words"])
def test_label_smoothing_at_each_level(shape, backend):
    head = SHAPES[shape](dtype=torch.float64, label_smoothing=0.2, reduction="none", backend=backend)
    hidden = torch.randn(9, WIDTH, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 53, (9,))
    expected = dense.smoothed_loss(head, hidden, target, 0.2)
    out = head(hidden, target)
    assert torch.allclose(out.loss, expected, atol=1e-9, rtol=0)
    assert not torch.allclose(out.loss, -out.output)
    inputs = [hidden, *head.parameters()]
    weights = torch.randn(9, dtype=torch.float64)
    for got, want in zip(
        torch.autograd.grad((out.loss * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs, allow_unused=True, materialize_grads=True),
        strict=True,
    ):
        assert torch.allclose(got, want, atol=1e-9, rtol=0)


def test_one_cluster_without_projection_is_the_full_softmax():
    head = make(n_clusters=1, projection=False, dtype=torch.float64)
    hidden = torch.randn(9, WIDTH, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 53, (9,))
    loss = F.cross_entropy(F.linear(hidden, head.weight, head.bias), target)
    inputs = [hidden, head.weight, head.bias]
    assert torch.allclose(head(hidden, target).loss, loss)
    for got, want in zip(
        torch.autograd.grad(head(hidden, target).loss, inputs), torch.autograd.grad(loss, inputs), strict=True
    ):
        assert torch.allclose(got, want)
