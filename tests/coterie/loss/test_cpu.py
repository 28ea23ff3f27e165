"""Gradients computed ahead, in the forward: only where they are asked for, and right however they are used."""

import pytest
import torch

from coterie.loss.cpu import Gradients
from tests.layers import WIDTH, make


def test_nothing_is_computed_ahead_where_no_gradient_is_asked_for(monkeypatch):
    monkeypatch.setattr(Gradients, "write", lambda *_: pytest.fail("a gradient"))
    head = make()
    with torch.no_grad():
        loss = head(torch.randn(5, WIDTH), torch.arange(5)).loss
    assert torch.isfinite(loss)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradients_computed_ahead_are_the_gradients_however_often_and_however_scaled(reduction):
    """Backward twice through one graph, with a scaled loss, with uneven weights: always what the definition says."""
    results = []
    for backend in ("torch", "reference"):
        torch.manual_seed(1)
        head = make(reduction=reduction, backend=backend, dtype=torch.float64)
        hidden = torch.randn(30, WIDTH, dtype=torch.float64, requires_grad=True)
        target = torch.randint(0, 53, (30,))
        target[::7] = -100
        loss = head(hidden, target).loss.sum()
        for factor in (1.0, 0.25, 3.0):
            (factor * loss).backward(retain_graph=True)
        weights = torch.rand(30, dtype=torch.float64)
        (head(hidden, target).output * weights).sum().backward()
        results.append([hidden.grad, *(parameter.grad for parameter in head.parameters())])
    for got, want in zip(*results, strict=True):
        assert torch.allclose(got, want, atol=1e-9)
