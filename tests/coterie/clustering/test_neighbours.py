"""The company of words, against the obvious way to find it, one word at a time."""

import pytest
import torch
import torch.nn.functional as F

from coterie import SelfOrganizedSoftmax
from coterie.clustering import neighbours as company
from tests.layers import WIDTH

ALONE = [7, 22, 23, 49]


def taught(**options) -> SelfOrganizedSoftmax:
    """A layer that has seen some of its words, and some words that stand alone."""
    head = SelfOrganizedSoftmax(WIDTH, 60, torch.arange(1, 61), reorganize_every=4, own_words=ALONE, **options)
    for _ in range(6):
        head(torch.randn(40, WIDTH), torch.randint(0, 50, (40,)))
        head.step()
    return head


@pytest.fixture(params=[1 << 25, 7])
def _block(request, monkeypatch):
    monkeypatch.setattr(company, "BLOCK_SCORES", request.param)


@pytest.mark.usefixtures("_block")
def test_the_nearest_are_those_of_the_largest_cosine():
    head = taught()
    for cluster in range(head.n_clusters):
        members = head.partition.members(cluster)
        found = company.nearest(head, cluster, 5)
        assert found.shape == (members.numel(), max(0, min(5, members.numel() - 1)))
        for place, word in enumerate(members):
            alike = {int(w): F.cosine_similarity(head.weight[w], head.weight[word], dim=0).item() for w in members}
            del alike[int(word)]
            best = sorted(alike, key=alike.__getitem__, reverse=True)[:5]
            assert members[found[place]].tolist() == best


@pytest.mark.usefixtures("_block")
@pytest.mark.parametrize("statistic", ["mean_hidden", "table"])
def test_the_next_best_clusters_are_those_of_the_best_scores(statistic):
    head = taught(statistic=statistic)
    head.partition.assign_(torch.where(head.partition.cluster_of == 3, 2, head.partition.cluster_of))  # 3 is empty
    found = company.next_best(head, torch.arange(60), 3)
    for word in range(60):
        scores = head.scores()(torch.tensor([word]))[0].tolist()
        own = int(head.partition.cluster_of[word])
        others = sorted((c for c in range(head.n_clusters) if c not in (own, 3)), key=scores.__getitem__, reverse=True)
        assert found[word].tolist() == (others[:3] if head.statistic.seen[word] else [-1] * 3)
        assert word not in ALONE or found[word].tolist() == [-1] * 3
    assert not bool(head.statistic.seen.all())


@pytest.mark.usefixtures("_block")
def test_typical_words_are_frequent_and_expected():
    head = taught()
    found = company.typicality(head, head.counts)
    for word in (0, 17, 48):
        mean = head.statistic.mean(torch.tensor([word]))
        expected = head.cluster_log_prob(mean).softmax(1)[0, head.partition.cluster_of[word]]  # among the clusters
        assert found[word].item() == pytest.approx(head.counts[word].item() * expected.item(), rel=1e-4)
    assert not found[[59, *ALONE]].any()


def test_a_clusters_mass_is_that_of_its_words():
    head = taught()
    found = company.mass(head.partition, head.counts)
    assert found.tolist() == [sum(word + 1 for word in members) for members in head.partition.to_lists()]


def test_a_fixed_partition_has_no_next_best_and_frequent_words_are_typical():
    head = SelfOrganizedSoftmax(WIDTH, 20, torch.arange(1, 21), reorganize_every=None)
    assert (company.next_best(head, torch.arange(20), 2) == -1).all()
    assert torch.equal(company.typicality(head, head.counts), head.counts.double())
