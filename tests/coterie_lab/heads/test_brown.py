"""Brown clusters: words move as a slow reference moves them, the text grows more probable, classes are found."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_mutual_info_score

from coterie.checks import cluster_capacity
from coterie_lab.data.grammar import default_grammar
from coterie_lab.heads import Material, brown, build
from coterie_lab.heads.brown import brown_clusters

GRAMMAR = default_grammar(words_per_class=5)
V = len(GRAMMAR.words)
TEXT = GRAMMAR.write(20_000, seed=1).numpy()
COUNTS = torch.from_numpy(np.bincount(TEXT, minlength=V))


def objective(text, cluster_of, n_clusters):
    """Counted anew from the text: Σ f(n) less those of the sums of n's rows and columns."""
    n = np.zeros((n_clusters, n_clusters))
    for first, second in pairwise(text):
        n[cluster_of[first], cluster_of[second]] += 1
    return sum(np.log(x) * x for x in n.flat if x) - sum(np.log(x) * x for x in (*n.sum(0), *n.sum(1)) if x)


def dealt(counts, n_clusters):
    """The words from frequent to rare, and the clusters that all begin in."""
    order = sorted(range(len(counts)), key=lambda word: (-int(counts[word]), word))
    cluster_of = np.empty(len(counts), dtype=np.int64)
    for rank, word in enumerate(order):
        cluster_of[word] = rank % n_clusters
    return order, cluster_of


def exchanged(text, counts, n_clusters, capacity):
    """One sweep, all clusters tried for every word; how often the best was full, how often two others were as good."""
    order, cluster_of = dealt(counts, n_clusters)
    turned_away = ties = 0
    for word in order:
        present, reached = int(cluster_of[word]), []
        for cluster in range(n_clusters):
            cluster_of[word] = cluster
            reached.append(objective(text, cluster_of, n_clusters))
        cluster_of[word] = -1
        room = [c for c in range(n_clusters) if (cluster_of == c).sum() < capacity]
        most = max(reached[c] for c in room)
        good = [c for c in room if reached[c] > most - 1e-7]
        cluster_of[word] = present if present in good else good[0]
        turned_away += max(reached) > most + 1e-7
        ties += present not in good and len(good) > 1
    return cluster_of, turned_away, ties


def small_text(seed):
    """Words that often follow themselves; three or more are not there, and two stand in the same places: hence ties."""
    rng = np.random.default_rng(seed)
    n_words = int(rng.integers(8, 14))
    words = rng.permutation(n_words)[3:]
    length = (4, 8, 30)[seed % 3]
    half = np.repeat(rng.choice(words, length), rng.integers(1, 4, length))
    half = np.concatenate((words[:1], half, words[:1]))
    twins = np.arange(n_words)
    twins[words[1:3]] = words[2:0:-1]
    text = np.concatenate((half, twins[half[1:]]))
    return text, torch.from_numpy(np.bincount(text, minlength=n_words)), int(rng.integers(2, 6))


def test_every_word_goes_where_the_slow_reference_puts_it(monkeypatch):
    monkeypatch.setattr(brown, "SWEEPS", 1)
    met = np.zeros(3, dtype=np.int64)
    for seed in range(150):
        text, counts, n_clusters = small_text(seed)
        gamma = (1.01, 1.2, 1.5)[seed // 3 % 3]
        capacity = cluster_capacity(len(counts), n_clusters, gamma)
        expected, *choices = exchanged(text, counts, n_clusters, capacity)
        found = brown_clusters(text, counts, n_clusters, gamma)
        assert found.cluster_of.tolist() == expected.tolist(), seed
        assert found.capacity == capacity
        assert bool((text[1:] == text[:-1]).any())
        met += *choices, (expected != dealt(counts, n_clusters)[1]).sum()
    assert bool((met > (10, 5, 100)).all())  # full clusters, ties, words that moved


def test_the_text_grows_more_probable_with_every_sweep_until_few_words_move(monkeypatch):
    found = []
    for sweeps in range(8):
        monkeypatch.setattr(brown, "SWEEPS", sweeps)
        found.append(brown_clusters(TEXT, COUNTS, 40).cluster_of.numpy())
    assert found[0].tolist() == dealt(COUNTS, 40)[1].tolist()
    reached = [objective(TEXT, cluster_of, 40) for cluster_of in found]
    moved = [int((one != other).sum()) for one, other in pairwise(found)]
    assert min(moved[0], moved[1] * 10) > V / 2  # the first sweep moves most, the next some
    assert moved[-1] == 0  # fewer than one of the 200 moved in an earlier sweep: that was the last
    for (before, after), n in zip(pairwise(reached), moved, strict=True):
        assert after > before or (n == 0 and after == before)
    monkeypatch.setattr(brown, "SETTLED", 1.1)  # all words may move in the last sweep: it is the first
    assert brown_clusters(TEXT, COUNTS, 40).cluster_of.tolist() == found[1].tolist()


def test_words_of_a_grammars_class_sit_together():
    found = brown_clusters(TEXT, COUNTS, 40, gamma=1.6)
    assert adjusted_mutual_info_score(GRAMMAR.class_of.numpy(), found.cluster_of.numpy()) > 0.8
    shuffled = np.random.default_rng(0).permutation(TEXT)
    found = brown_clusters(shuffled, COUNTS, 40, gamma=1.6)
    assert adjusted_mutual_info_score(GRAMMAR.class_of.numpy(), found.cluster_of.numpy()) < 0.2


def test_the_head_has_these_clusters_and_learns():
    material = Material(GRAMMAR.words, TEXT)
    head = build("hsm-similarity", 16, V, COUNTS, material, by="brown", n_clusters=20, gamma=0.8)
    expected = brown_clusters(TEXT, COUNTS, 20, 0.8)
    assert torch.equal(head.partition.cluster_of, expected.cluster_of)
    assert int(head.partition.sizes.max()) == 12  # as many as gamma allows
    embedding = torch.nn.Embedding(V, 16)
    optimizer = torch.optim.Adam([*embedding.parameters(), *head.parameters()], lr=0.02)
    text, losses = torch.from_numpy(TEXT), []
    for start in range(0, 10_000, 500):
        loss = head(embedding(text[start : start + 500]), text[start + 1 : start + 501]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        head.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5
    assert torch.equal(head.partition.cluster_of, expected.cluster_of)
    # Opened again, it keeps its clusters, and there is no text to find others in.
    saved = Material(GRAMMAR.words, np.empty(0, np.int64), expected)
    again = build("hsm-similarity", 16, V, COUNTS, saved, by="brown", n_clusters=20, gamma=0.8)
    again.load_state_dict(head.state_dict())
    hidden = torch.randn(5, 16)
    assert torch.equal(again.log_prob(hidden), head.log_prob(hidden))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"by": "ward", "text": TEXT}, "by must be 'k-means' or 'brown'; got 'ward'"),
        ({}, "Brown clusters need text= .* or partition="),
        ({"text": TEXT, "vectors": torch.randn(V, 4)}, "from the text alone; leave out vectors="),
        ({"text": TEXT[:1]}, "a text of at least two words, as word numbers; got 1"),
        ({"text": TEXT, "n_clusters": V + 1}, f"n_clusters must be from 1 to n_classes = {V}; got {V + 1}"),
        ({"text": TEXT, "gamma": 0.5}, "gamma = 0.5 gives"),
        ({"text": TEXT + 1}, f"words must be from 0 to {V - 1}; got 1 to {V}"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(options, said):
    with pytest.raises(ValueError, match=said):
        build("hsm-similarity", 16, V, COUNTS, **{"by": "brown", **options})
