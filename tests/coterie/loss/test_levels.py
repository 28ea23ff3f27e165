"""What each level sees: tokens mapped to the clusters, or the clusters mapped to where the tokens are."""

from contextlib import nullcontext

import pytest
import torch

from coterie.loss import cpu, levels
from tests.layers import WIDTH, make, with_own_words
from tests.reference import dense


def taught(folded, monkeypatch, **options):
    """A layer after one batch, its loss and its gradients."""
    if not folded:
        monkeypatch.setattr(cpu, "project_few", lambda h, v, root: (*levels.project(h, v), root))
    torch.manual_seed(1)
    head = make(**options).double()
    hidden = torch.randn(60, WIDTH, dtype=torch.float64, requires_grad=True)
    loss = head(hidden, torch.randint(0, 53, (60,))).loss
    monkeypatch.undo()
    return head, loss, torch.autograd.grad(loss, [hidden, *head.parameters()])


@pytest.mark.parametrize("own_words", [0, 9])
@pytest.mark.parametrize("statistic", ["mean_hidden", "table"])
def test_mapping_the_clusters_is_mapping_the_tokens(monkeypatch, statistic, own_words):
    apart, *expected = taught(False, monkeypatch, statistic=statistic, own_words=own_words)
    folded, *found = taught(True, monkeypatch, statistic=statistic, own_words=own_words)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(folded.statistic.total, apart.statistic.total)
    words = torch.arange(53)
    torch.testing.assert_close(folded.scores()(words), apart.scores()(words))


def test_many_tokens_map_the_clusters():
    head = with_own_words()
    root, _ = levels.root_rows(head.vectors(), head.partition)
    assert len(root) == 9 + 17
    rows = torch.randn(2 * len(root), WIDTH)
    assert torch.equal(levels.project_few(rows, head.vectors(), root)[0], rows)
    assert levels.project_few(rows[1:], head.vectors(), root)[2] is root


@pytest.mark.parametrize("frozen", ["hidden", "projection", "cluster_weight", "weight", "bias"])
@pytest.mark.parametrize("own_words", [0, 9])
def test_what_is_frozen_gets_no_gradient_and_the_rest_its_own(frozen, own_words):
    torch.manual_seed(1)
    head = make(own_words=own_words).double()
    hidden = torch.randn(60, WIDTH, dtype=torch.float64, requires_grad=True)
    target, given = torch.randint(0, 53, (60,)), {"hidden": hidden, **dict(head.named_parameters())}
    head(hidden, target).loss.backward()
    expected = {name: tensor.grad for name, tensor in given.items()}
    for tensor in given.values():
        tensor.grad = None
    given[frozen].requires_grad_(False)
    head(hidden, target).loss.backward()
    expected[frozen] = None
    assert given[frozen].grad is None
    torch.testing.assert_close({name: tensor.grad for name, tensor in given.items()}, expected)


@pytest.mark.parametrize("tokens", [3, 60])  # with many tokens the clusters' map refuses too
@pytest.mark.parametrize("make_head", [make, with_own_words])
def test_second_derivatives_are_those_of_the_reference_or_refused(make_head, tokens):
    target = torch.randint(0, 53, (tokens,))
    for backend, expectation in (
        ("reference", nullcontext()),
        ("torch", pytest.raises(RuntimeError, match='need backend="reference"')),
    ):
        head = make_head(backend=backend)
        hidden = torch.randn(tokens, WIDTH, requires_grad=True)
        with expectation:
            (grad,) = torch.autograd.grad(head(hidden, target).loss, hidden, create_graph=True)
            (second,) = torch.autograd.grad(grad.square().sum(), head.projection)
            assert second.abs().sum() > 0


@pytest.mark.parametrize("tokens", [2, 40])
def test_second_derivatives_of_all_words_are_those_of_the_definition(tokens):
    head = with_own_words(dtype=torch.float64)
    hidden, weights = torch.randn(tokens, WIDTH, dtype=torch.float64), torch.randn(tokens, 53, dtype=torch.float64)
    found = []
    for log_prob in (head.log_prob, lambda rows: dense.log_prob(head, rows)):
        (grad,) = torch.autograd.grad((log_prob(hidden) * weights).sum(), head.weight, create_graph=True)
        found.append(torch.autograd.grad(grad.square().sum(), [head.weight, head.projection]))
    torch.testing.assert_close(*found)


def test_in_an_autocast_clusters_are_mapped_in_its_dtype():
    head, hidden = make(), torch.randn(60, WIDTH, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        _, word_hidden, vectors = levels.project_few(hidden, head.vectors(), head.cluster_weight)
        loss = head(hidden, torch.randint(0, 53, (60,))).loss
    assert word_hidden.dtype == vectors.dtype == torch.bfloat16
    loss.backward()
    assert hidden.grad.dtype == head.projection.grad.dtype == torch.float32


@pytest.mark.parametrize("options", [{}, {"projection": False}, {"bias": False}, {"own_words": 9}])
def test_what_is_remembered_is_held_against_the_maps(options):
    """Clusters compete for words with each other, and not with the words that stand alone."""
    head = make(**options).double()
    hidden = torch.randn(60, WIDTH, dtype=torch.float64)
    weight, bias = levels.cluster_vectors(head.vectors())
    found = (hidden @ weight.T + (0 if bias is None else bias)).log_softmax(1)
    torch.testing.assert_close(found, head.cluster_log_prob(hidden).log_softmax(1))
