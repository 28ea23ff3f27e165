"""What is counted: where biases start, and what a cluster is worth as words come and go."""

import pytest
import torch

from coterie import Partition, SelfOrganizedSoftmax
from coterie.clustering.prior import log_frequency, log_mass

COUNTS = torch.tensor([400, 100, 50, 30, 20, 0, 7, 3])
SEATS = Partition([0, 1, 1, 2, 2, 2, 0, 1], 4)  # the last cluster has none


def layer(**options):
    return SelfOrganizedSoftmax(6, 8, COUNTS, partition=SEATS, **options)


def learned_nothing(head):
    with torch.no_grad():
        for parameter in (head.weight, head.cluster_weight, head.cluster_bias):
            parameter.zero_()
    return head


def test_a_layer_that_has_learned_nothing_says_what_was_counted():
    found = learned_nothing(layer(dtype=torch.float64)).log_prob(torch.randn(6, dtype=torch.float64)).exp()
    words = COUNTS.double() + 1
    mass = torch.tensor([float(COUNTS[SEATS.cluster_of == c].sum()) + 1 for c in range(3)], dtype=torch.float64)
    for cluster in range(3):
        mine = SEATS.cluster_of == cluster
        torch.testing.assert_close(found[mine], mass[cluster] / mass.sum() * words[mine] / words[mine].sum())


def test_the_words_of_a_text_have_biases_around_zero():
    biases = log_frequency(COUNTS)
    assert float((biases * (COUNTS + 1)).sum()) == pytest.approx(0, abs=1e-3)
    assert float(biases[0] - biases[5]) == pytest.approx(torch.tensor(401.0).log().item(), abs=1e-5)


def test_a_cluster_of_an_even_share_has_no_prior():
    even = log_mass(torch.full((9,), 5), torch.arange(9) % 3, 3)
    assert torch.equal(even, torch.zeros(3))


@pytest.mark.parametrize("counting", [False, True])
def test_what_a_cluster_is_worth_moves_with_its_words(counting):
    head = SelfOrganizedSoftmax(6, 8, None if counting else COUNTS, partition=SEATS, n_clusters=4, gamma=4.0)
    hidden, target = torch.randn(300, 6), torch.randint(0, 8, (300,))
    head(hidden, target)
    counts, before, learned = head.counts.clone(), head.prior.shift.clone(), head.cluster_bias.clone()
    seats = head.partition.cluster_of.clone()
    assert head.reorganize().words_moved > 0
    moved = log_mass(counts, head.partition.cluster_of, 4) - log_mass(counts, seats, 4)
    assert moved.any()
    torch.testing.assert_close(head.prior.shift, before + moved)
    assert torch.equal(head.cluster_bias, learned)  # what is learned stays the optimizer's
    if not counting:
        torch.testing.assert_close(head.prior.shift, log_mass(COUNTS, head.partition.cluster_of, 4))


def test_the_expected_share_of_a_cluster_follows_the_words_at_once():
    head = learned_nothing(layer(gamma=4.0))
    hidden = torch.randn(200, 6)
    head(hidden, torch.randint(0, 8, (200,)))
    head.reorganize()
    share = head.cluster_log_prob(hidden[0]).exp()
    mass = torch.zeros(4).index_add_(0, head.partition.cluster_of, COUNTS.float()) + 1
    mass[head.partition.sizes == 0] = 0
    torch.testing.assert_close(share, mass / mass.sum())


def test_part_of_a_checkpoint_leaves_it_alone():
    head = layer()
    before = head.prior.shift.clone()
    head.load_state_dict({"weight": torch.zeros(8, 6)}, strict=False)
    assert torch.equal(head.prior.shift, before)


def test_without_biases_there_is_none():
    head = layer(bias=False)
    assert head.prior is None
    assert "prior.shift" not in head.state_dict()
    head(torch.randn(50, 6), torch.randint(0, 8, (50,)))
    head.reorganize()


def test_parameters_drawn_anew_start_from_what_was_counted_since():
    head = SelfOrganizedSoftmax(6, 8, partition=SEATS, n_clusters=4, gamma=4.0)
    for _ in range(3):
        head(torch.randn(60, 6), torch.randint(0, 5, (60,)))
        head.reorganize()
    head.reset_parameters()
    assert torch.equal(head.bias, log_frequency(head.counts))
    assert torch.equal(head.prior.shift, log_mass(head.counts, head.partition.cluster_of, 4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_it_follows_the_layer_into_any_precision_and_stays_exact(dtype):
    exact = layer().prior.shift
    torch.set_default_dtype(dtype)
    try:
        by_default = layer()
    finally:
        torch.set_default_dtype(torch.float32)
    for head in (by_default, layer(dtype=dtype), layer().to(dtype)):
        assert torch.equal(head.prior.shift, exact)
        assert head.prior.shift.dtype == torch.float32
        hidden = torch.randn(5, 6, dtype=dtype)
        torch.testing.assert_close(head.log_prob(hidden).float().exp().sum(1), torch.ones(5), atol=0.02, rtol=0)
        head(hidden, torch.randint(0, 8, (5,))).loss.backward()
        assert head.cluster_bias.grad.dtype == dtype


def test_a_layer_can_be_made_without_memory():
    head = layer(device="meta")
    assert head.prior.shift.device.type == head.bias.device.type == "meta"
