"""What a trained layer answers: an exact distribution, whose best and whose clusters are those of the reference."""

import pytest
import torch
from torch import nn

from tests.layers import SHAPES, WIDTH, make, with_empty_clusters
from tests.reference import dense


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


def test_probabilities_sum_to_one_after_many_reorganizations():
    head = make(200)
    for _ in range(50):
        head(torch.randn(64, WIDTH), torch.randint(0, 200, (64,)))
        with torch.no_grad():
            head.cluster_weight.add_(torch.randn_like(head.cluster_weight))
        head.reorganize()
        total = head.log_prob(torch.randn(5, WIDTH)).exp().sum(-1)
        assert torch.allclose(total, torch.ones(5), atol=1e-5)


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


def test_predict_is_the_argmax():
    head = with_empty_clusters()
    hidden = torch.randn(4, 3, WIDTH)
    assert torch.equal(head.predict(hidden), head.log_prob(hidden).argmax(-1))


@pytest.mark.parametrize("leading", [(), (1,), (6,), (2, 3), (2, 1, 3), (0,), (0, 4)])
def test_any_leading_shape(leading):
    head = make()
    hidden, target = torch.randn(*leading, WIDTH), torch.randint(0, 53, leading)
    output, loss = head(hidden, target)
    assert output.shape == target.shape
    assert loss.shape == ()
    assert torch.isfinite(loss)
    assert head.log_prob(hidden).shape == (*leading, 53)
    assert head.cluster_log_prob(hidden).shape == (*leading, head.n_clusters)
    assert head.predict(hidden).shape == head.sample(hidden).shape == leading
    assert head.topk(hidden, 3)[0].shape == head.topk(hidden, 3)[1].shape == (*leading, 3)


@pytest.mark.parametrize(
    "call",
    [
        lambda h, x: h.log_prob(x),
        lambda h, x: h.topk(x, 2)[0],
        lambda h, x: h.predict(x),
        lambda h, x: h.sample(x),
        lambda h, x: h.sample(x, top_k=3),
        lambda h, x: h.sample(x, top_p=0.5),
        lambda h, x: h.sample(x, temperature=0.5),
        lambda h, x: h.extend(x.view(0, 5, WIDTH), x.new_empty(0, 5), 3)[0],
    ],
)
@torch.no_grad()
def test_no_rows_at_all(call):
    assert call(make(), torch.randn(0, WIDTH)).shape[0] == 0


@pytest.mark.parametrize("projection", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_the_best_are_the_dense_best_in_autocast_too(projection, grad):
    head = make(300, in_features=16, projection=projection)
    hidden = torch.randn(45, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.set_grad_enabled(grad):
        values, _ = head.topk(hidden, 10)
        torch.testing.assert_close(values, head.log_prob(hidden).topk(10).values)


@pytest.mark.parametrize("method", ["log_prob", "predict"])
def test_exports(method):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = with_empty_clusters().eval()

        def forward(self, hidden):
            return getattr(self.head, method)(hidden)

    module = Wrapped()
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(module, (torch.randn(4, WIDTH),), dynamic_shapes=({0: batch},))
    hidden = torch.randn(9, WIDTH)
    assert torch.allclose(program.module()(hidden).float(), module(hidden).float(), atol=1e-6)
