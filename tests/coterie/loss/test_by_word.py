"""The word matrix's gradient as one sparse product, against that of the clusters one by one."""

import warnings

import pytest
import torch

from coterie.loss import by_word
from tests.layers import SHAPES, WIDTH, make, with_empty_clusters

needs_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this PyTorch has no MKL")


@pytest.fixture
def products(monkeypatch):
    """Every matrix is large enough; counts the products."""
    monkeypatch.setattr(by_word, "LARGE", 0)
    made, multiply = [], by_word.ByWord.multiply

    def counted(self, hidden, scale, out):
        out.fill_(torch.nan)  # as memory may be that was used before
        multiply(self, hidden, scale, out)
        made.append(out.shape)

    monkeypatch.setattr(by_word.ByWord, "multiply", counted)
    return made


def gradients(head, hidden, target, few, monkeypatch):
    monkeypatch.setattr(by_word, "FEW", few)
    loss = head(hidden, target).loss
    loss = loss if loss.ndim == 0 else (loss * torch.arange(1.0, loss.numel() + 1).view_as(loss)).sum()
    return torch.autograd.grad(loss, [hidden, *head.parameters()])


@needs_mkl
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tokens", [1, 7, 60])
@pytest.mark.parametrize("reduction", ["mean", "none"])  # gradients computed ahead, and afterwards
def test_both_ways_give_one_gradient(shape, tokens, reduction, products, monkeypatch):
    head = SHAPES[shape]()
    head.reduction = reduction
    hidden, target = torch.randn(tokens, WIDTH, requires_grad=True), torch.randint(0, head.n_classes, (tokens,))
    target[1::5] = -100
    expected = gradients(head, hidden, target, -1, monkeypatch)
    assert not products
    found = gradients(head, hidden, target, 1000, monkeypatch)
    assert set(products) == {(head.n_classes, WIDTH)}
    torch.testing.assert_close(found, expected)


@needs_mkl
def test_nothing_to_predict(products, monkeypatch):
    head, hidden = with_empty_clusters(), torch.randn(3, WIDTH, requires_grad=True)
    found = gradients(head, hidden, torch.full((3,), -100), 1000, monkeypatch)
    assert products
    assert not any(gradient.any() for gradient in found)


@needs_mkl
def test_many_tokens_a_word_other_dtypes_and_small_matrices_go_by_clusters(products, monkeypatch):
    hidden, target = torch.randn(60, WIDTH), torch.randint(0, 53, (60,))
    make()(hidden, target)
    assert not products  # 60 tokens for 53 words
    with torch.autocast("cpu", dtype=torch.bfloat16):
        make()(hidden[:5], target[:5])
    make().double()(hidden[:5].double(), target[:5])
    assert not products
    make()(hidden[:5], target[:5])
    assert products
    monkeypatch.setattr(by_word, "LARGE", 1 << 20)
    make()(hidden[:5], target[:5])
    assert len(products) == 1


@needs_mkl
def test_pytorchs_word_of_sparse_matrices_is_not_passed_on(products, monkeypatch):
    by_word._suppress_beta_warning.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradients(make(), torch.randn(4, WIDTH, requires_grad=True), torch.arange(4), 1000, monkeypatch)
    assert products
