"""What is remembered: λⁿ on the old value, order does not matter, and nothing bad gets in."""

import math

import pytest
import torch

from coterie import Partition
from coterie.clustering.statistics import MeanHidden, Table, log_cluster_share
from coterie.loss.grouping import group
from tests.layers import WIDTH, make

V, K = 6, 4


def seats():
    return Partition(torch.tensor([0, 1, 2, 0, 1, 2]), 3)


def update(statistic, sample, target, counts, loss=1.0):
    statistic.update(sample, group(target, seats()), counts, torch.tensor(loss))


def by_hand(batches, counts, smoothing):
    """The rule word by word: total and weight, in float64."""
    total, weight = torch.zeros(V, K, dtype=torch.float64), torch.zeros(V, dtype=torch.float64)
    for sample, target in batches:
        for word in range(V):
            rows = sample[target == word].double()
            if len(rows):
                f = max(int(counts[word]), 1)
                keep = (1 / f if smoothing == "paper" else 1 - 1 / f) ** len(rows)
                total[word] = keep * total[word] + (1 - keep) * rows.mean(0)
                weight[word] = keep * weight[word] + (1 - keep)
    return total, weight


@pytest.mark.parametrize("smoothing", ["mean", "paper"])
def test_n_occurrences_count_as_lambda_to_the_n(smoothing):
    statistic = MeanHidden(V, K, smoothing)
    counts = torch.tensor([1, 2, 7, 100, 0, 3])
    batches = [(torch.randn(20, K), torch.randint(-1, V, (20,))) for _ in range(5)]
    for sample, target in batches:
        update(statistic, sample, target, counts)
    total, weight = by_hand(batches, counts, smoothing)
    assert torch.allclose(statistic.total.double(), total, atol=1e-5)
    assert torch.allclose(statistic.weight.double(), weight, atol=1e-5)
    seen = weight > 0
    assert torch.equal(statistic.seen, seen)
    assert torch.allclose(statistic.mean(torch.arange(V))[seen].double(), total[seen] / weight[seen, None], atol=1e-4)


def test_a_mean_over_one_pass_is_about_the_plain_mean():
    """λ = 1 - 1/f: after f occurrences, every one has counted, none overwhelmingly."""
    statistic, n = MeanHidden(V, K), 50
    samples = torch.randn(n, K)
    for row in samples:
        update(statistic, row[None], torch.tensor([2]), torch.full((V,), n))
    assert torch.allclose(statistic.mean(torch.tensor([2]))[0], samples.mean(0), atol=0.15)
    first_alone = MeanHidden(V, K)
    update(first_alone, samples[:1], torch.tensor([2]), torch.full((V,), n))
    assert torch.allclose(first_alone.mean(torch.tensor([2])), samples[:1], atol=1e-5)


def test_the_papers_rule_forgets_all_but_the_last_and_never_learns_a_word_seen_once():
    statistic = MeanHidden(V, K, "paper")
    counts = torch.tensor([1000, 1, 5, 5, 5, 5])
    for row in (first := torch.randn(1, K)), (last := torch.randn(1, K)):
        update(statistic, row, torch.tensor([0]), counts)
        update(statistic, row, torch.tensor([1]), counts)
    assert torch.allclose(statistic.mean(torch.tensor([0])), last, atol=0.01)
    assert not torch.allclose(first, last, atol=0.01)
    assert statistic.seen.tolist() == [True, False, False, False, False, False]


def test_a_batch_that_is_not_finite_is_left_out():
    statistic = MeanHidden(V, K)
    sample, target = torch.full((8, K), math.nan), torch.randint(0, V, (8,))
    update(statistic, sample, target, torch.ones(V, dtype=torch.int64), loss=math.nan)
    assert not statistic.seen.any()
    assert torch.equal(statistic.total, torch.zeros(V, K))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("statistic", ["table", "mean_hidden"])
def test_a_bad_hidden_vector_is_noticed_unless_it_is_ignored(bad, statistic):
    head = make(statistic=statistic)
    hidden, target = torch.randn(8, WIDTH), torch.randint(0, 53, (8,))
    hidden[3, 1] = bad
    head(hidden, target)
    assert not head.statistic.seen.any()
    assert not head.statistic.total.any()
    target[3] = -100
    head.tally.counts.zero_()
    head(hidden, target)
    assert head.statistic.seen.any()
    assert torch.isfinite(head.statistic.total).all()


def test_ignored_targets_are_never_counted():
    head = make(counts=None)
    target = torch.full((12,), -100)
    target[:5] = torch.tensor([3, 3, 3, 9, 0])
    head(torch.randn(12, WIDTH), target)
    assert head.counts.nonzero().squeeze(1).tolist() == [0, 3, 9]
    assert int(head.counts[3]) == 3
    assert head.statistic.seen.nonzero().squeeze(1).tolist() == [0, 3, 9]


def test_evaluation_teaches_nothing():
    head = make(counts=None).eval()
    head(torch.randn(12, WIDTH), torch.randint(0, 53, (12,)))
    assert not head.statistic.seen.any()
    assert not head.counts.any()


@pytest.mark.parametrize("statistic", ["table", "mean_hidden"])
def test_scores_are_the_mean_log_probabilities(statistic):
    """Up to a constant a word, which changes no order; and `information` takes the clusters' share off."""
    head = make(statistic=statistic, counts=torch.arange(1, 54) ** 2, n_clusters=8)
    hidden, target = torch.randn(40, WIDTH), torch.randint(0, 10, (40,))
    head(hidden, target)
    log_p = head.cluster_log_prob(hidden)
    words = head.statistic.seen.nonzero().squeeze(1)
    expected = torch.stack([log_p[target == word].mean(0) for word in words.tolist()]).detach()
    head.score = "paper"
    score = head.scores()(words).detach()
    assert torch.allclose(score - score.mean(1, True), expected - expected.mean(1, True), atol=1e-4)

    r = expected.softmax(1)
    share = head.counts[words].float() @ r / head.counts[words].sum()
    head.score = "information"
    score = head.scores()(words).detach()
    expected = r.log() - share.log()
    assert torch.allclose(score - score.mean(1, True), expected - expected.mean(1, True), atol=1e-4)


def test_table_is_in_bits_and_covers_empty_clusters():
    weight, hidden = torch.randn(5, 3), torch.randn(2, 3)
    sample = Table(V, 5).sample(hidden, lambda: (weight, None))
    assert torch.allclose(sample.exp2().sum(1), torch.ones(2), atol=1e-5)


def test_cluster_share_does_not_depend_on_the_blocks():
    logits, counts = torch.randn(50, 7), torch.randint(0, 30, (50,))
    words = torch.arange(50)
    shares = [log_cluster_share(lambda part: logits[part], words, counts, block) for block in (50, 7, 1)]
    assert torch.allclose(shares[0], shares[1], atol=1e-5)
    assert torch.allclose(shares[0], shares[2], atol=1e-5)
    assert float(shares[0].exp().sum()) == pytest.approx(1, abs=1e-5)


def test_the_statistic_keeps_its_precision_in_a_half_precision_layer():
    head = make().to(torch.bfloat16)
    assert head.weight.dtype == torch.bfloat16
    assert head.statistic.total.dtype == torch.float32
    assert head.meter.sums.dtype == torch.float64
    head(torch.randn(4, WIDTH, dtype=torch.bfloat16), torch.randint(0, 53, (4,)))
    assert head.statistic.seen.any()
