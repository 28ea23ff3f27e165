"""What each level sees: tokens mapped to the clusters, or the clusters mapped to where the tokens are."""

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
    assert head._levels(rows)[0] is rows
    assert head._levels(rows[1:])[0].shape == (len(rows) - 1, 2 * WIDTH)


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
        "forward": lambda linear: setattr(linear, "forward", linear.forward),
        "parametrization": lambda linear: parametrize.register_parametrization(linear, "weight", nn.Identity()),
    }
    for name, touch in touched.items():
        linear = nn.Linear(2, 2)
        assert plain(linear)
        touch(linear)
        assert not plain(linear), name
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert not plain(nn.Linear(2, 2))
    handle.remove()
