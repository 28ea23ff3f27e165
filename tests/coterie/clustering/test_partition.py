"""Who sits with whom, and who stands alone: invariants, ways in, ways out."""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import Partition, SelfOrganizedSoftmax
from coterie.checks import cluster_capacity, default_budget
from coterie.clustering.own_words import choose
from coterie.clustering.partition import random_partition


@given(st.data(), st.integers(1, 12), st.integers(0, 3))
def test_index_tensors_agree(data, n_clusters, spare):
    cluster_of = data.draw(st.lists(st.integers(0, n_clusters), min_size=1, max_size=60))  # the last: alone
    alone = [word for word, cluster in enumerate(cluster_of) if cluster == n_clusters]
    partition = Partition(cluster_of, n_clusters, n_own=len(alone) + spare)
    lists = partition.to_lists()
    assert len(lists) == n_clusters
    assert sorted(word for cluster in [*lists, alone] for word in cluster) == list(range(len(cluster_of)))
    assert partition.own.tolist() == partition.slots[: len(alone)].tolist() == alone
    assert partition.slots.numel() == len(alone) + spare
    assert partition.root_sizes.tolist() == [*map(len, lists), *[1] * len(alone), *[0] * spare]
    columns = [n_clusters + alone.index(word) if word in alone else c for word, c in enumerate(cluster_of)]
    assert partition.column(torch.arange(len(cluster_of))).tolist() == columns
    assert partition.sizes.tolist() == [len(cluster) for cluster in lists]
    for c, members in enumerate(lists):
        assert partition.members(c).tolist() == members == sorted(members)
        assert all(cluster_of[word] == c for word in members)
    assert torch.equal(partition.words[partition.position], torch.arange(len(cluster_of)))
    assert partition.capacity == int(partition.sizes.max())
    again = Partition.from_lists(lists, own=alone)
    assert torch.equal(again.cluster_of, partition.cluster_of)
    assert again.n_own == len(alone)
    if alone:
        return
    mapped = Partition.from_mapping(dict(enumerate(cluster_of)))
    assert torch.equal(mapped.cluster_of, partition.cluster_of)


def test_whole_numbers_of_any_kind():
    assert Partition.from_lists([torch.tensor([0, 2]).numpy(), torch.tensor([1])]).to_lists() == [[0, 2], [1]]


def test_a_given_partition_may_be_fuller_but_reorganizing_keeps_the_limit():
    crowded = Partition([0] * 40 + list(range(1, 8)) + [1] * 6, 8)
    head = SelfOrganizedSoftmax(8, 53, torch.ones(53).long(), partition=crowded, score="paper", frequency_budget=2.0)
    with torch.no_grad():
        head.cluster_bias[0] = 100  # everyone would stay
    head(torch.randn(500, 8), torch.arange(500) % 53)
    head.reorganize()
    assert int(head.partition.sizes.max()) <= 11  # 1.5 · √53, rounded up


def test_assigning_in_place_keeps_the_memory_and_may_alias():
    partition = Partition([0, 1, 0, 1], 2, n_own=3)
    before = [buffer.data_ptr() for buffer in partition.buffers()]
    partition.assign_(torch.tensor([1, 1, 1, 0]))
    assert partition.to_lists() == [[3], [0, 1, 2]]
    partition.assign_(partition.cluster_of)
    assert partition.to_lists() == [[3], [0, 1, 2]]
    partition.assign_(torch.tensor([2, 1, 0, 2]))
    assert (partition.to_lists(), partition.own.tolist()) == ([[2], [1]], [0, 3])
    assert partition.slots[:2].tolist() == [0, 3]
    assert partition.root_sizes.tolist() == [1, 1, 1, 1, 0]
    assert before == [buffer.data_ptr() for buffer in partition.buffers()]


@given(
    n_words=st.integers(2, 2000),
    gamma=st.floats(1.0, 3.0),
    skew=st.floats(0.0, 3.0),
    share_of_clusters=st.floats(0.0, 1.0),
    n_own=st.integers(0, 100),
    seed=st.integers(0, 9999),
)
@settings(max_examples=150, deadline=None)
def test_a_random_start_keeps_both_limits_and_the_default_budget_always_can_be(
    n_words, gamma, skew, share_of_clusters, n_own, seed
):
    generator = torch.Generator().manual_seed(seed)
    counts = (1000 / torch.arange(1, n_words + 1) ** skew).long()[torch.randperm(n_words, generator=generator)]
    n_clusters = max(1, round(share_of_clusters * n_words))
    capacity = cluster_capacity(n_words, n_clusters, gamma)
    own = choose(counts, n_clusters, min(n_own, n_words))
    clustered = counts.index_fill(0, own, 0)
    budget = max(1, -int(-default_budget(n_words, n_clusters, capacity) * int(clustered.sum()) // 1))
    partition = random_partition(counts, n_clusters, capacity, budget, own, n_own)
    assert torch.equal(partition.own, own)
    assert int(partition.sizes.max()) <= capacity
    for members in partition.to_lists():
        mass = counts[members].tolist()
        assert not mass or sum(mass) - min(mass) < budget


def test_the_random_start_is_random_and_balanced():
    counts = torch.randint(1, 50, (400,))
    torch.manual_seed(1)
    first = random_partition(counts, 20, 30, 10**9)
    second = random_partition(counts, 20, 30, 10**9)
    assert not torch.equal(first.cluster_of, second.cluster_of)
    assert first.sizes.tolist() == [20] * 20


@pytest.mark.parametrize("own_words", [None, 0, 3])
def test_sizes_and_budget_hold_after_reorganizing(own_words):
    counts = (3000 / torch.arange(1, 1001)).long()
    head = SelfOrganizedSoftmax(8, 1000, counts, own_words=own_words, reorganize_every=5)
    assert head.frequency_budget == 0.1
    own = head.partition.own.tolist()
    assert len(own) == own_words if own_words is not None else own
    for _ in range(4):
        head(torch.randn(500, 8), torch.multinomial(counts.float(), 500, replacement=True))
        head.reorganize()
    cluster_of, alone = head.partition.cluster_of, head.partition.own
    assert int(head.partition.sizes.max()) <= 1.5 * 1000**0.5 + 1
    assert alone.tolist() == own  # and those who stand alone never move
    mass = torch.zeros(head.n_clusters + 1, dtype=torch.int64).index_add_(0, cluster_of, counts)
    # A cluster takes a word only while below the budget; words never seen keep their place and come first, so the word
    # that closed it may be its largest. The budget is a share of what occurs in clusters.
    largest = torch.zeros_like(mass).scatter_reduce(0, cluster_of, counts, "amax")
    assert bool((mass - largest < 0.1 * (counts.sum() - counts[own].sum()))[:-1].all())


@pytest.mark.parametrize("vocabulary", [None, ["a", "b", "ü", "<unk>", '"', "\n", "语"]])
@pytest.mark.parametrize("own", [[], [0], [2, 6]])
@pytest.mark.parametrize("random", [False, True])
def test_saved_and_loaded(tmp_path, vocabulary, own, random):
    cluster_of = torch.tensor([2, 0, 0, 1, 2, 2, 0])
    cluster_of[own] = 4
    partition = Partition(cluster_of, 4, capacity=5, n_own=len(own))
    partition.assign_(cluster_of, random=random)
    path = tmp_path / "partition.json"
    with pytest.warns(UserWarning, match="random clusters") if random else nullcontext():
        partition.save(path, vocabulary)
    again = Partition.load(path, vocabulary)
    assert torch.equal(again.cluster_of, partition.cluster_of)
    assert (again.n_clusters, again.capacity, again.n_own, again.random) == (4, 5, len(own), random)
    assert ('"own"' in path.read_text(encoding="utf-8")) == bool(own)
    if vocabulary:
        assert '"ü"' in path.read_text(encoding="utf-8")
        shuffled = vocabulary[::-1]
        moved = Partition.load(path, shuffled)
        assert moved.cluster_of.tolist() == partition.cluster_of.tolist()[::-1]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Partition([0, 1, 3], 3), "clusters 0 to 3; there are 3"),
        (lambda: Partition([0, -1], 3), "clusters -1 to 0; there are 3"),
        (lambda: Partition([], 3), "one whole number per word"),
        (lambda: Partition(torch.rand(4), 3), "one whole number per word"),
        (lambda: Partition([0, 0, 0], 1, capacity=2), "3 words, more than the capacity of 2"),
        (lambda: Partition([0, 2, 2], 2, n_own=1), "2 words stand alone; there is room for n_own = 1"),
        (lambda: Partition([0, 3, 1], 2, n_own=1), "clusters 0 to 3; there are 2"),
        (lambda: Partition.from_lists([[0, 1], [1, 2]], 3), "word 1 is in cluster 0 and again in cluster 1"),
        (lambda: Partition.from_lists([[0, 1], [2]], 3, own=[1]), "word 1 is in cluster 0 and again in own"),
        (lambda: Partition.from_lists([[0, 1]], 3, own=[3]), "own names word 3; words are 0 to 2"),
        (lambda: Partition.from_lists([], own=[0, 1]), "at least one cluster"),
        (lambda: Partition.from_lists([[0], [2]], 3), r"1 of 3 words are in no cluster; the first: \[1\]"),
        (lambda: Partition.from_lists([[0, 7]], 2), "names word 7; words are 0 to 1"),
        (lambda: Partition.from_lists([]), "at least one cluster"),
        (lambda: Partition.from_mapping({}), "mapping is empty"),
        (lambda: Partition.from_mapping({0: 0, 2: 1}), r"in no cluster; the first: \[1\]"),
        (lambda: Partition.from_mapping({0: -2}), "mapped to cluster -2"),
        (lambda: Partition.from_mapping({5: 0}, 2), "names word 5; words are 0 to 1"),
        (lambda: Partition.from_mapping({0: 0.9, 1: 1.9}), "a cluster must be a whole number; got 0.9"),
        (lambda: Partition.from_lists([["a"]]), "a word must be a whole number; got 'a'"),
    ],
)
def test_bad_partitions_say_what_is_wrong(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "content, vocabulary, message",
    [
        ("not json", None, "is not a partition"),
        ("[1, 2]", None, '"format": "coterie-partition"'),
        ('{"format": "other"}', None, "is not a partition"),
        ('{"format": "coterie-partition", "n_words": 2}', None, "lacks 'clusters'"),
        ('{"format": "coterie-partition", "n_words": 2, "capacity": 2, "clusters": 5}', None, "lists of words"),
        ('{"format": "coterie-partition", "n_words": "2", "capacity": 2, "clusters": [[0]]}', None, "whole numbers"),
        ('{"format": "coterie-partition", "n_words": 1, "capacity": 1, "clusters": [[""]]}', ["a"], "it names ''"),
        (
            '{"format": "coterie-partition", "n_words": 2, "capacity": 2, "clusters": [[0]], "own": 1}',
            None,
            "its clusters must be lists of words",
        ),
        (
            '{"format": "coterie-partition", "n_words": 2, "capacity": 2, "clusters": [[0]], "own": [0, 1]}',
            None,
            "word 0 is in cluster 0 and again in own",
        ),
        (
            '{"format": "coterie-partition", "n_words": 2, "capacity": 2, "clusters": [[]], "own": ["a", "b"]}',
            None,
            "give the vocabulary",
        ),
        (
            '{"format": "coterie-partition", "n_words": 2, "capacity": 2, "clusters": [["a"]], "own": ["b"]}',
            ["a", "c"],
            "another vocabulary: it names 'b'",
        ),
        (
            '{"format": "coterie-partition", "n_words": 2, "n_clusters": 1, "capacity": 2, "clusters": [["a", "b"]]}',
            None,
            "give the vocabulary",
        ),
        (
            '{"format": "coterie-partition", "n_words": 2, "n_clusters": 1, "capacity": 2, "clusters": [["a", "b"]]}',
            ["a", "c"],
            "another vocabulary: it names 'b'",
        ),
        (
            '{"format": "coterie-partition", "n_words": 2, "n_clusters": 1, "capacity": 2, "clusters": [["a", "b"]]}',
            ["a", "b", "c"],
            "the vocabulary has 3 words, the partition 2",
        ),
    ],
)
def test_bad_files_say_what_is_wrong(tmp_path, content, vocabulary, message):
    (path := tmp_path / "partition.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        Partition.load(path, vocabulary)
