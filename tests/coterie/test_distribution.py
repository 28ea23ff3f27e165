"""P(w|h) is a distribution, and the loss and its gradients are those of its definition."""

import pytest
import torch

from coterie.loss.cpu import Gradients
from tests.layers import SHAPES, WIDTH, make, with_empty_clusters
from tests.reference import dense

TORCH_BACKENDS = ("reference", "torch")


@pytest.mark.parametrize("shape", SHAPES)
def test_probabilities_sum_to_one(shape):
    head = SHAPES[shape]()
    total = head.log_prob(torch.randn(11, WIDTH)).exp().sum(-1)
    assert torch.allclose(total, torch.ones(11), atol=1e-5)


def test_probabilities_sum_to_one_after_many_reorganizations():
    head = make(200)
    for _ in range(50):
        head(torch.randn(64, WIDTH), torch.randint(0, 200, (64,)))
        with torch.no_grad():
            head.cluster_weight.add_(torch.randn_like(head.cluster_weight))
        head.reorganize()
        total = head.log_prob(torch.randn(5, WIDTH)).exp().sum(-1)
        assert torch.allclose(total, torch.ones(5), atol=1e-5)


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


def test_nothing_is_computed_ahead_where_no_gradient_is_asked_for(monkeypatch):
    monkeypatch.setattr(Gradients, "write", lambda *_: pytest.fail("a gradient"))
    head = make()
    with torch.no_grad():
        loss = head(torch.randn(5, WIDTH), torch.arange(5)).loss
    assert torch.isfinite(loss)


@pytest.mark.parametrize("shape", SHAPES)
def test_log_prob_equals_the_dense_reference(shape):
    head = SHAPES[shape](dtype=torch.float64)
    hidden = torch.randn(6, WIDTH, dtype=torch.float64)
    assert torch.allclose(head.log_prob(hidden), dense.log_prob(head, hidden), atol=1e-9, rtol=0)


def test_log_prob_is_differentiable():
    head = with_empty_clusters(dtype=torch.float64)
    hidden = torch.randn(6, WIDTH, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(6, 53, dtype=torch.float64)
    expected = torch.autograd.grad((dense.log_prob(head, hidden) * weights).sum(), [hidden, *head.parameters()])
    actual = torch.autograd.grad((head.log_prob(hidden) * weights).sum(), [hidden, *head.parameters()])
    for got, want in zip(actual, expected, strict=True):
        assert torch.allclose(got, want, atol=1e-9, rtol=0)


@pytest.mark.parametrize("backend", TORCH_BACKENDS)
@pytest.mark.parametrize("make_head", [make, with_empty_clusters])
def test_label_smoothing_at_each_level(make_head, backend):
    head = make_head(dtype=torch.float64, label_smoothing=0.2, reduction="none", backend=backend)
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
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        assert torch.allclose(got, want, atol=1e-9, rtol=0)


def test_cluster_log_prob_is_the_mass_of_the_clusters():
    head = with_empty_clusters(dtype=torch.float64)
    hidden = torch.randn(4, WIDTH, dtype=torch.float64)
    log_p = dense.log_prob(head, hidden)
    for cluster in range(head.n_clusters):
        words = head.partition.members(cluster)
        expected = log_p[:, words].logsumexp(1) if words.numel() else torch.full((4,), -torch.inf, dtype=log_p.dtype)
        assert torch.allclose(head.cluster_log_prob(hidden)[:, cluster], expected)
        inside = head.member_log_prob(hidden.reshape(2, 2, WIDTH), cluster).reshape(4, -1)
        assert torch.allclose(inside + expected[:, None], log_p[:, words])


@pytest.mark.parametrize("shape", SHAPES)
def test_float32_measures_multiply_to_the_perplexity(shape):
    head = SHAPES[shape]()
    out = head(torch.randn(31, WIDTH), torch.randint(0, head.n_classes, (31,)))
    measures = head.measures()
    assert measures.tokens == 31
    assert measures.perplexity == pytest.approx(out.loss.exp().item(), rel=1e-5)
    assert measures.cluster_perplexity * measures.in_cluster_perplexity == pytest.approx(measures.perplexity)
    assert head.measures().tokens == 0
