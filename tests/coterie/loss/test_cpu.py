"""Gradients computed ahead, in the forward: only where they are asked for, and right however they are used."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from coterie.loss import by_word
from coterie.loss.cpu import Gradients
from tests.layers import WIDTH, make, with_own_words


def test_nothing_is_computed_ahead_where_no_gradient_is_asked_for(monkeypatch):
    monkeypatch.setattr(Gradients, "write", lambda *_: pytest.fail("a gradient"))
    head = make()
    with torch.no_grad():
        loss = head(torch.randn(5, WIDTH), torch.arange(5)).loss
    assert torch.isfinite(loss)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("make_head", [make, with_own_words])
def test_gradients_computed_ahead_are_the_gradients_however_often_and_however_scaled(make_head, reduction):
    """Backward twice through one graph, with a scaled loss, with uneven weights: always what the definition says."""
    results = []
    for backend in ("torch", "reference"):
        torch.manual_seed(1)
        head = make_head(reduction=reduction, backend=backend, dtype=torch.float64)
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


class Made(TorchDispatchMode):
    """Notes the operations that make a new tensor of a shape: neither a view nor in-place."""

    def __init__(self, shape):
        super().__init__()
        self.shape, self.names = shape, []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        given = {tensor.untyped_storage().data_ptr() for tensor in _tensors(args, kwargs)}
        result = operation(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            if tensor.shape == self.shape and tensor.untyped_storage().data_ptr() not in given:
                self.names.append(operation.overloadpacket.__name__)
        return result


def _tensors(*values):
    leaves = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    return [leaf for leaf in leaves if leaf.layout == torch.strided]


@pytest.mark.parametrize("large", [0, 1 << 40])  # as one sparse product, or cluster by cluster
@pytest.mark.parametrize("tokens", [5, 90])
@pytest.mark.parametrize("make_head", [make, with_own_words])
def test_the_word_vectors_have_one_gradient_of_their_size_and_no_copy(make_head, tokens, large, monkeypatch):
    """The part of words that stand alone is added to its rows."""
    monkeypatch.setattr(by_word, "LARGE", large)
    head = make_head()
    hidden, target = torch.randn(tokens, WIDTH), torch.arange(tokens) % 53
    with Made(head.weight.shape) as made:
        head(hidden, target).loss.backward()
    assert made.names == ["new_empty"]
    assert head.weight.grad.abs().sum(1)[target].all()
