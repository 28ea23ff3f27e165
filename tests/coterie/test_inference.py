"""What a trained layer answers: an exact distribution, whose best and whose clusters are those of the reference."""

import pytest
import torch
from torch import nn

from tests.layers import SHAPES, WIDTH, make, with_empty_clusters, with_own_words
from tests.reference import dense


@pytest.mark.parametrize("shape", SHAPES)
def test_log_prob_equals_the_dense_reference(shape):
    head = SHAPES[shape](dtype=torch.float64)
    hidden = torch.randn(6, WIDTH, dtype=torch.float64)
    assert torch.allclose(head.log_prob(hidden), dense.log_prob(head, hidden), atol=1e-9, rtol=0)


@pytest.mark.parametrize("make_head", [with_empty_clusters, with_own_words])
def test_log_prob_is_differentiable(make_head):
    head = make_head(dtype=torch.float64)
    hidden = torch.randn(6, WIDTH, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(6, 53, dtype=torch.float64)
    expected = torch.autograd.grad((dense.log_prob(head, hidden) * weights).sum(), [hidden, *head.parameters()])
    actual = torch.autograd.grad((head.log_prob(hidden) * weights).sum(), [hidden, *head.parameters()])
    for got, want in zip(actual, expected, strict=True):
        assert torch.allclose(got, want, atol=1e-9, rtol=0)


@pytest.mark.parametrize("own_words", [0, 21])
def test_probabilities_sum_to_one_after_many_reorganizations(own_words):
    head = make(200, own_words=own_words)
    for _ in range(50):
        head(torch.randn(64, WIDTH), torch.randint(0, 200, (64,)))
        with torch.no_grad():
            head.cluster_weight.add_(torch.randn_like(head.cluster_weight))
        head.reorganize()
        total = head.log_prob(torch.randn(5, WIDTH)).exp().sum(-1)
        assert torch.allclose(total, torch.ones(5), atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_root_holds_all_there_is_and_the_clusters_what_does_not_stand_alone(shape):
    head = SHAPES[shape](dtype=torch.float64)
    hidden, place = torch.randn(2, 3, WIDTH, dtype=torch.float64), head.partition
    n_clusters, alone = place.n_clusters, place.own
    p = dense.log_prob(head, hidden.flatten(0, 1)).exp().view(2, 3, -1)
    root, clusters = head.root_log_prob(hidden).exp(), head.cluster_log_prob(hidden).exp()
    assert root.shape == (2, 3, n_clusters + place.n_own)
    torch.testing.assert_close(root.sum(-1), torch.ones(2, 3, dtype=torch.float64))
    torch.testing.assert_close(clusters.sum(-1), 1 - p[..., alone].sum(-1))
    assert torch.equal(root[..., :n_clusters], clusters)
    torch.testing.assert_close(root[..., n_clusters:][..., : len(alone)], p[..., place.slots[: len(alone)]])
    assert torch.equal(place.slots[: len(alone)], alone)
    assert not root[..., n_clusters + len(alone) :].any()  # places that are left


@pytest.mark.parametrize("make_head", [with_empty_clusters, with_own_words])
def test_cluster_log_prob_is_the_mass_of_the_clusters(make_head):
    head = make_head(dtype=torch.float64)
    hidden = torch.randn(4, WIDTH, dtype=torch.float64)
    log_p = dense.log_prob(head, hidden)
    for cluster in range(head.n_clusters):
        words = head.partition.members(cluster)
        expected = log_p[:, words].logsumexp(1) if words.numel() else torch.full((4,), -torch.inf, dtype=log_p.dtype)
        assert torch.allclose(head.cluster_log_prob(hidden)[:, cluster], expected)
        inside = head.member_log_prob(hidden.reshape(2, 2, WIDTH), cluster).reshape(4, -1)
        assert torch.allclose(inside + expected[:, None], log_p[:, words])


@pytest.mark.parametrize("make_head", [with_empty_clusters, with_own_words])
def test_predict_is_the_argmax(make_head):
    head = make_head()
    hidden = torch.randn(4, 3, WIDTH)
    assert torch.equal(head.predict(hidden), head.log_prob(hidden).argmax(-1))


@pytest.mark.parametrize("leading", [(), (1,), (6,), (2, 3), (2, 1, 3), (0,), (0, 4)])
@pytest.mark.parametrize("make_head", [make, with_own_words])
def test_any_leading_shape(make_head, leading):
    head = make_head()
    hidden, target = torch.randn(*leading, WIDTH), torch.randint(0, 53, leading)
    output, loss = head(hidden, target)
    assert output.shape == target.shape
    assert loss.shape == ()
    assert torch.isfinite(loss)
    assert head.log_prob(hidden).shape == (*leading, 53)
    assert head.cluster_log_prob(hidden).shape == (*leading, head.n_clusters)
    assert head.root_log_prob(hidden).shape == (*leading, head.n_clusters + head.partition.n_own)
    assert head.embed(target).shape == hidden.shape
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
@pytest.mark.parametrize("make_head", [make, with_own_words])
@torch.no_grad()
def test_no_rows_at_all(make_head, call):
    assert call(make_head(), torch.randn(0, WIDTH)).shape[0] == 0


@pytest.mark.parametrize("projection", [True, False])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("own_words", [0, 60])
def test_the_best_are_the_dense_best_in_autocast_too(projection, grad, own_words):
    head = make(300, in_features=16, projection=projection, own_words=own_words)
    hidden = torch.randn(45, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.set_grad_enabled(grad):
        values, _ = head.topk(hidden, 10)
        torch.testing.assert_close(values, head.log_prob(hidden).topk(10).values)


@pytest.mark.parametrize(
    "method, make_head",
    [("log_prob", with_empty_clusters), ("log_prob", with_own_words), ("predict", with_own_words)],
)
def test_exports(method, make_head):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = make_head().eval()

        def forward(self, hidden):
            return getattr(self.head, method)(hidden)

    module = Wrapped()
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(module, (torch.randn(4, WIDTH),), dynamic_shapes=({0: batch},))
    hidden = torch.randn(9, WIDTH)
    assert torch.allclose(program.module()(hidden).float(), module(hidden).float(), atol=1e-6)
