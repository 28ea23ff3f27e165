"""What each level sees: tokens mapped to the clusters, or the clusters mapped to where the tokens are."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from coterie.projection import Projected, plain
from tests.layers import WIDTH, make


def taught(folded, monkeypatch, touch=lambda head: None, **options):
    """A layer after one batch, its loss and its gradients."""
    monkeypatch.setattr(Projected, "_many", lambda *_: folded)
    torch.manual_seed(1)
    head = make(**options).double()
    touch(head)
    hidden = torch.randn(60, WIDTH, dtype=torch.float64, requires_grad=True)
    loss = head(hidden, torch.randint(0, 53, (60,))).loss
    return head, loss, torch.autograd.grad(loss, [hidden, *head.parameters()])


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("statistic", ["mean_hidden", "table"])
def test_mapping_the_clusters_is_mapping_the_tokens(monkeypatch, backend, statistic):
    apart, *expected = taught(False, monkeypatch, backend=backend, statistic=statistic)
    folded, *found = taught(True, monkeypatch, backend=backend, statistic=statistic)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(folded.statistic.total, apart.statistic.total)
    words = torch.arange(53)
    torch.testing.assert_close(folded._scores(folded.statistic)(words), apart._scores(apart.statistic)(words))


def test_many_tokens_map_the_clusters(monkeypatch):
    head = make()
    rows = torch.randn(2 * head.n_clusters, WIDTH)
    assert head._levels(rows)[0].shape == rows.shape
    assert head._levels(rows[1:])[0].shape == (len(rows) - 1, 2 * WIDTH)


@pytest.mark.parametrize("frozen", ["hidden", "projection.weight", "cluster_weight", "weight"])
def test_what_is_frozen_gets_no_gradient_and_the_rest_its_own(frozen):
    torch.manual_seed(1)
    head = make().double()
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


def test_second_derivatives_are_those_of_the_reference_or_refused():
    target = torch.randint(0, 53, (60,))
    for backend, expectation in (
        ("reference", nullcontext()),
        ("torch", pytest.raises(RuntimeError, match='need backend="reference"')),
    ):
        head = make(backend=backend)
        hidden = torch.randn(60, WIDTH, requires_grad=True)
        with expectation:
            (grad,) = torch.autograd.grad(head(hidden, target).loss, hidden, create_graph=True)
            (second,) = torch.autograd.grad(grad.square().sum(), head.projection.weight)
            assert second.abs().sum() > 0


def test_in_an_autocast_clusters_are_mapped_in_its_dtype():
    head, hidden = make(), torch.randn(60, WIDTH, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        _, word_hidden, vectors = head._levels(hidden)
        loss = head(hidden, torch.randint(0, 53, (60,))).loss
    assert word_hidden.dtype == vectors.dtype == torch.bfloat16
    loss.backward()
    assert hidden.grad.dtype == head.projection.weight.grad.dtype == torch.float32


TOUCHES = {
    "nothing": lambda head: None,
    "a hook": lambda head: head.projection.register_forward_hook(lambda module, given, both: 2 * both),
    "a bias": lambda head: setattr(head.projection, "bias", nn.Parameter(torch.randn(2 * WIDTH).double())),
    "two maps": lambda head: setattr(
        head, "projection", nn.Sequential(nn.Linear(WIDTH, WIDTH), head.projection).double()
    ),
}


@pytest.mark.parametrize("touch", TOUCHES)
def test_what_is_remembered_is_held_against_the_map_as_it_is(touch, monkeypatch):
    head, *_ = taught(True, monkeypatch, TOUCHES[touch])
    torch.manual_seed(2)
    hidden, target = torch.randn(60, WIDTH, dtype=torch.float64), torch.randint(0, 53, (60,))
    assert float(head.eval()(hidden, target).loss) == pytest.approx(
        -float(head.log_prob(hidden)[range(60), target].mean())
    )
    weight, bias = head._cluster_vectors()
    expected = head.cluster_log_prob(hidden)
    found = (hidden @ weight.T + bias).log_softmax(1)
    torch.testing.assert_close(found, expected)


def test_a_linear_map_is_plain_until_somebody_touches_it():
    assert plain(None)
    assert not plain(nn.Identity())
    touched = {
        "hook": lambda linear: linear.register_forward_hook(lambda *_: None),
        "hook before": lambda linear: linear.register_forward_pre_hook(lambda *_: None),
        "backward hook": lambda linear: linear.register_full_backward_hook(lambda *_: None),
        "backward hook before": lambda linear: linear.register_full_backward_pre_hook(lambda *_: None),
        "forward": lambda linear: setattr(linear, "forward", linear.forward),
        "parametrization": lambda linear: parametrize.register_parametrization(linear, "weight", nn.Identity()),
    }
    for name, touch in touched.items():
        linear = nn.Linear(2, 2)
        assert plain(linear)
        touch(linear)
        assert not plain(linear), name
    for everywhere in (
        nn.modules.module.register_module_forward_hook, nn.modules.module.register_module_forward_pre_hook,
        nn.modules.module.register_module_full_backward_hook, nn.modules.module.register_module_full_backward_pre_hook,
    ):  # fmt: skip
        handle = everywhere(lambda *_: None)
        assert not plain(nn.Linear(2, 2))
        handle.remove()
