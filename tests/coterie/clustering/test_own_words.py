"""Words that stand alone: which they are, that they stay where they are, and what they are worth from the start."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import Partition, SelfOrganizedSoftmax
from coterie.clustering.own_words import TILE, choose, places
from coterie.clustering.prior import log_mass
from tests.layers import WIDTH, make, with_own_words


def zipf(n_words: int, n_tokens: int = 10_000_000) -> torch.Tensor:
    """Counts as in a text: a few hundred words make up most of it."""
    share = 1 / torch.arange(1, n_words + 1)
    return (n_tokens * share / share.sum()).long()


def by_rule(counts: torch.Tensor, n_clusters: int | None = None) -> torch.Tensor:
    return choose(counts, n_clusters or round(counts.numel() ** 0.5), None)


# -- the rule -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_words", [53, 1000, 44_370])
def test_of_a_text_the_most_frequent_words_stand_alone(n_words):
    counts = zipf(n_words)
    found = by_rule(counts)
    assert found.tolist() == list(range(len(found)))  # the most frequent, and all of them down to the last
    assert 0 < len(found) < n_words / 10
    assert counts[found].sum() > 0.2 * counts.sum()


@given(st.integers(2, 3000), st.integers(1, 60), st.integers(0, 99))
@settings(deadline=None)
def test_where_counts_are_even_none_stands_alone(n_words, n_clusters, seed):
    generator = torch.Generator().manual_seed(seed)
    for counts in (
        torch.ones(n_words),
        torch.randint(8, 12, (n_words,), generator=generator),
        torch.bincount(torch.randint(0, n_words, (20 * n_words,), generator=generator), minlength=n_words),
        torch.zeros(n_words),
    ):
        assert not by_rule(counts.long(), min(n_clusters, n_words)).numel()


def test_where_frequent_words_are_little_of_all_none_stands_alone():
    counts = torch.full((10_000,), 10)
    counts[:60] = 200  # each is as frequent as 20 others, all are 11 percent
    assert not by_rule(counts).numel()
    counts[:60] = 2000
    assert by_rule(counts).tolist() == list(range(60))


@given(st.integers(0, 999))
@settings(deadline=None, max_examples=30)
def test_the_rule_sees_shares_alone_neither_the_order_nor_the_length_of_a_text(seed):
    generator = torch.Generator().manual_seed(seed)
    counts = (zipf(500) * torch.rand(500, generator=generator)).long()
    found = by_rule(counts)
    assert found.numel()
    assert torch.equal(by_rule(1000 * counts), found)
    order = torch.randperm(500, generator=generator)
    assert torch.equal(order[by_rule(counts[order])].sort().values, found)


@pytest.mark.parametrize("n_words, n_clusters", [(44_370, 216), (131_072, 368)])
def test_the_last_tile_of_the_roots_columns_is_full(n_words, n_clusters):
    """A GPU computes whole tiles; fewer words than one has columns are left out for that."""
    found = by_rule(zipf(n_words), n_clusters)
    assert len(found) > TILE
    assert (n_clusters + len(found)) % TILE == 0
    assert len(found) <= len(by_rule(zipf(n_words), n_clusters - 1)) < len(found) + TILE + 8


def test_equally_frequent_words_stand_alone_together_or_not_at_all():
    """Where no tile is to be filled."""
    counts = zipf(2000)
    for low in range(0, 200, 10):
        counts[low : low + 10] = counts[low].item()
    found = by_rule(counts)
    assert len(found) % 10 == 0
    assert len(found)


def test_a_number_takes_the_most_frequent_and_of_equals_the_lower():
    counts = torch.tensor([5, 9, 9, 0, 9, 5, 9])
    wanted = [[], [1], [1, 2], [1, 2, 4], [1, 2, 4, 6], [0, 1, 2, 4, 6], [0, 1, 2, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6]]
    assert [choose(counts, 3, n).tolist() for n in range(8)] == wanted
    assert choose(torch.arange(5000) // 100, 3, 150).tolist() == [*range(4800, 4850), *range(4900, 5000)]


@pytest.mark.parametrize("ids", [[7, 0, 3], (7, 0, 3), torch.tensor([7, 0, 3], dtype=torch.int32)])
def test_words_that_are_named_stand_alone_whatever_their_counts(ids):
    assert choose(torch.arange(10) ** 4, 3, ids).tolist() == [0, 3, 7]
    head = make(53, counts=torch.arange(53) ** 2, own_words=ids)
    assert head.partition.own.tolist() == [0, 3, 7]
    assert head.partition.n_own == 8  # with 8 clusters the root's columns are a multiple of 8
    assert make(53, counts=None, own_words=[]).partition.n_own == 0


@pytest.mark.parametrize("n_clusters", [7, 8, 64])
def test_there_are_places_for_all_and_the_root_stays_a_multiple_of_eight(n_clusters):
    for n_own in (0, 1, 7, 8, 9, 200):
        assert n_own <= places(n_own, n_clusters) < n_own + 8
        assert (n_clusters + places(n_own, n_clusters)) % 8 == 0 or n_clusters % 8
    assert places(None, n_clusters) >= n_clusters


# -- in a layer -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own_words", [None, 5, [2, 40, 41]])
@pytest.mark.parametrize("statistic", ["mean_hidden", "table"])
def test_reorganizing_moves_others_and_never_a_word_that_stands_alone(own_words, statistic):
    head = make(200, counts=zipf(200, 5000), own_words=own_words, statistic=statistic)
    own, columns, moved = head.partition.own.tolist(), head.partition.slots.clone(), 0
    assert own
    for _ in range(4):
        head(torch.randn(300, WIDTH), torch.randint(0, 200, (300,)))
        moved += head.reorganize().words_moved
        assert head.partition.own.tolist() == own
        assert torch.equal(head.partition.slots[: len(own)], columns[: len(own)])
    assert moved


@pytest.mark.parametrize("statistic", ["mean_hidden", "table"])
def test_words_that_stand_alone_are_counted_and_not_remembered(statistic):
    head = with_own_words(counts=None, statistic=statistic)
    target = torch.arange(53).repeat(2)
    head(torch.randn(106, WIDTH), target)
    assert head.counts.tolist() == [2] * 53
    assert head.statistic.seen.tolist() == [word % 4 != 0 for word in range(53)]
    assert not head.statistic.total[head.partition.own].any()


def test_frequent_words_that_stand_alone_close_no_cluster():
    """The budget is a share of what occurs in clusters, a tenth of 990: ten words of ten, of the fifteen there is room
    for."""
    counts = torch.full((100,), 10)
    counts[0] = 1000
    head = SelfOrganizedSoftmax(4, 100, counts, n_clusters=10, own_words=1, frequency_budget=0.1)
    assert head.partition.capacity == 15
    for _ in range(3):
        assert sorted(head.partition.sizes.tolist()) == [9] + 9 * [10]
        head(torch.randn(200, 4), torch.arange(200) % 100)
        assert head.reorganize().words_moved


# -- biases ---------------------------------------------------------------------------------------------------------


def learned_nothing(head):
    with torch.no_grad():
        for parameter in (head.weight, head.cluster_weight, head.cluster_bias):
            parameter.zero_()
    return head


def check_counts(head):
    """P(w) as counted: each cluster and each word that stands alone has occurred once more, and so has each word of a
    cluster."""
    counts, cluster_of = head.counts.double(), head.partition.cluster_of
    mass = torch.ones(head.n_clusters + 1, dtype=torch.float64).index_add(0, cluster_of, counts)[cluster_of]
    inside = torch.zeros(head.n_clusters + 1, dtype=torch.float64).index_add(0, cluster_of, counts + 1)[cluster_of]
    expected = (counts + 1) * torch.where(cluster_of == head.n_clusters, 1.0, mass / inside)
    found = head.log_prob(torch.randn(WIDTH, dtype=head.weight.dtype)).exp()
    torch.testing.assert_close(found, expected / expected.sum(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("own_words", [0, 1, 7, None, 51, 53, [0, 52]])
def test_a_layer_that_has_learned_nothing_says_what_was_counted(own_words):
    counts = zipf(53, 3000)
    counts[30:33] = 0
    head = learned_nothing(SelfOrganizedSoftmax(WIDTH, 53, counts, own_words=own_words, dtype=torch.float64))
    check_counts(head)
    for _ in range(2):
        head(torch.randn(200, WIDTH).double(), torch.randint(0, 53, (200,)))
        head.reorganize()
        check_counts(head)


def test_words_chosen_at_the_first_reorganization_compete_with_the_clusters_as_counted():
    """The root of a layer that has learned how often its clusters occur gives the words that leave them their part."""
    head = learned_nothing(make(53, counts=None, dtype=torch.float64))
    counts = zipf(53, 3000)
    head(torch.randn(int(counts.sum()), WIDTH).double(), torch.arange(53).repeat_interleave(counts))
    head.prior.shift.copy_(log_mass(head.counts, head.partition.cluster_of, head.n_clusters))
    assert torch.equal(head.counts, counts)
    assert not head.partition.own.numel()
    head.reorganize()
    own = head.partition.own
    assert own.tolist() == list(range(len(own)))
    mass = torch.ones(head.n_clusters + 1).index_add(0, head.partition.cluster_of, counts.float())[:-1]
    mass[head.partition.sizes == 0] = 0
    expected = torch.cat((mass, counts[own] + 1.0, torch.zeros(head.partition.n_own - len(own))))
    root = head.root_log_prob(torch.randn(WIDTH).double()).exp().float()
    torch.testing.assert_close(root, expected / expected.sum())


@pytest.mark.parametrize("own_words", [None, 4, 20])
@pytest.mark.parametrize("bias", [True, False])
def test_without_counts_they_are_chosen_once_and_kept(own_words, bias):
    head = SelfOrganizedSoftmax(WIDTH, 100, own_words=own_words, bias=bias)
    places_before = head.partition.n_own
    optimizer = torch.optim.Adam(head.parameters())
    target = torch.multinomial(zipf(100).float(), 2000, replacement=True)
    head(torch.randn(2000, WIDTH), target).loss.backward()
    optimizer.step()
    before = copy.deepcopy([*head.parameters(), *(state["exp_avg"] for state in optimizer.state.values())])
    expected = choose(torch.bincount(target, minlength=100), head.n_clusters, own_words)
    assert expected.numel()
    head.reorganize()
    assert head.partition.own.tolist() == expected.tolist()
    assert not head.statistic.seen[expected].any()
    assert head.statistic.seen.any()
    after = [*head.parameters(), *(state["exp_avg"] for state in optimizer.state.values())]
    for old, new in zip(before, after, strict=True):
        if new is head.bias:
            others = torch.ones(100).index_fill(0, expected, 0).bool()
            assert torch.equal(old[others], new[others])
            assert (old[expected] != new[expected]).all()
        else:
            assert torch.equal(old, new)
    head(torch.randn(5000, WIDTH), torch.full((5000,), 99))  # now by far the most frequent
    head.reorganize()
    assert head.partition.own.tolist() == expected.tolist()
    assert head.partition.n_own == places_before


def test_of_more_words_than_there_are_places_the_most_frequent_stand_alone():
    head = make(400, counts=None, n_clusters=7, gamma=3.0)  # one place for each cluster
    assert head.partition.n_own == 7
    counts = torch.ones(400, dtype=torch.int64)
    counts[100:120] = torch.arange(120, 100, -1)
    assert len(choose(counts, 7, None)) > 7
    head(torch.randn(int(counts.sum()), WIDTH), torch.arange(400).repeat_interleave(counts))
    head.reorganize()
    assert head.partition.own.tolist() == list(range(100, 107))


@pytest.mark.parametrize("options", [{}, {"counts": None, "own_words": [3, 5]}, {"counts": None}, {"own_words": 0}])
def test_a_fixed_partition_has_words_of_its_own_if_they_are_known_at_the_start(options):
    head = make(100, **{"counts": zipf(100), "reorganize_every": None, **options})
    own = head.partition.own.tolist()
    wanted = options.get("own_words", by_rule(zipf(100), head.n_clusters).tolist())
    assert own == ([] if options.get("own_words") == 0 or options == {"counts": None} else wanted)
    before = head.partition.cluster_of.clone()
    for _ in range(3):
        head(torch.randn(500, WIDTH), torch.randint(0, 100, (500,))).loss.backward()
        assert head.step() is None
    assert torch.equal(head.partition.cluster_of, before)


def test_the_papers_layer_has_none():
    assert SelfOrganizedSoftmax.as_in_paper(WIDTH, 1000, zipf(1000)).partition.n_own == 0


def test_a_given_partitions_words_of_their_own_are_the_layers():
    given = Partition.from_lists([[0, 1], [5, 6], [3]], own=[2, 4])
    head = make(7, partition=given, gamma=3.0)
    assert head.partition.own.tolist() == [2, 4]
    assert head.partition.n_own == 2
