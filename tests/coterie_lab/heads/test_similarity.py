"""Clusters of similar words: planted ones are found, the limits hold, and vectors come from a text or a file."""

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_mutual_info_score

from coterie_lab.data.grammar import default_grammar
from coterie_lab.heads import build
from coterie_lab.heads.similarity import similar_words, vectors_from_file, vectors_from_text


def planted(sizes, width=12):
    """Vectors around one direction for each class, of different lengths; and the classes."""
    classes = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    centres = torch.eye(len(sizes), width)
    vectors = centres[classes] + 0.05 * torch.randn(len(classes), width)
    return vectors * torch.randn(len(classes), 1).exp(), classes


def test_words_of_like_vectors_sit_together():
    vectors, classes = planted([10] * 10)
    found = similar_words(vectors, torch.ones(100, dtype=torch.int64), 10)
    assert adjusted_mutual_info_score(classes.numpy(), found.cluster_of.numpy()) > 0.95


def test_no_cluster_holds_more_than_it_may():
    vectors, classes = planted([85, 5, 5, 5])
    counts = torch.randint(1, 100, (100,))
    found = similar_words(vectors, counts, 4, gamma=1.5)
    assert int(found.sizes.max()) <= 38 < 85
    # The most frequent words of the large class had the first choice, and chose alike.
    large = (classes == 0).nonzero().squeeze(1)
    first = large[counts[large].argsort(descending=True, stable=True)][:30]
    assert len(found.cluster_of[first].unique()) == 1


def test_the_company_of_words_in_a_text_tells_their_classes():
    grammar = default_grammar(words_per_class=5)
    text = grammar.write(20_000, seed=1).numpy()
    vectors = vectors_from_text(text, len(grammar.words), 40)
    assert vectors.shape == (200, 40)
    found = similar_words(vectors, torch.from_numpy(np.bincount(text, minlength=200)), 40, gamma=1.6)
    assert adjusted_mutual_info_score(grammar.class_of.numpy(), found.cluster_of.numpy()) > 0.8
    shuffled = np.random.default_rng(0).permutation(text)
    found = similar_words(vectors_from_text(shuffled, 200, 40), torch.ones(200, dtype=torch.int64), 40, gamma=1.6)
    assert adjusted_mutual_info_score(grammar.class_of.numpy(), found.cluster_of.numpy()) < 0.2


def test_vectors_from_a_file(tmp_path):
    vectors, _ = planted([10] * 10)
    np.save(tmp_path / "vectors.npy", vectors.numpy())
    counts = torch.arange(100, 0, -1)
    head = build("hsm-similarity", 4, 100, counts, vectors=str(tmp_path / "vectors.npy"))
    assert torch.equal(head.partition.cluster_of, similar_words(vectors, counts, 10).cluster_of)
    assert head.reorganize_every is None
    (tmp_path / "words.npy").write_text("no array")
    with pytest.raises(ValueError, match="holds no word vectors"):
        vectors_from_file(tmp_path / "words.npy")


def test_a_text_of_another_vocabulary_is_refused():
    with pytest.raises(ValueError, match="from 0 to 4"):
        vectors_from_text(np.array([1, 2, 5]), 5)
