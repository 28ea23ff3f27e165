"""Layers for tests: odd sizes, empty clusters, one cluster, as many as words, words that stand alone."""

import torch

from coterie import Partition, SelfOrganizedSoftmax
from coterie.loss.levels import step_of

WIDTH = 7


def make(n_classes: int = 53, **options) -> SelfOrganizedSoftmax:
    """A layer with parameters large enough that nothing is nearly uniform."""
    counts = options.pop("counts", torch.randint(0, 100, (n_classes,)))
    head = SelfOrganizedSoftmax(options.pop("in_features", WIDTH), n_classes, counts, **options)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn_like(parameter))
        if head.projection is not None and head.activation is None:
            identity = torch.eye(head.in_features).to(head.projection).repeat(2, 1)
            head.projection.sub_(identity).div_(step_of(head.in_features))  # the maps have such numbers
    return head


def with_empty_clusters(n_classes: int = 53, n_clusters: int = 9, **options) -> SelfOrganizedSoftmax:
    """Every third cluster is empty, one holds a single word."""
    seats = [c for c in range(n_clusters) if c % 3]
    cluster_of = torch.tensor([seats[-1]] + [seats[w % (len(seats) - 1)] for w in range(n_classes - 1)])
    return make(n_classes, partition=Partition(cluster_of, n_clusters), **options)


def with_own_words(n_classes: int = 53, spare: int = 3, **options) -> SelfOrganizedSoftmax:
    """Every fourth word stands alone, `spare` places for such words are empty, and so are two of nine clusters."""
    cluster_of = torch.tensor([9 if word % 4 == 0 else (0, 1, 3, 4, 5, 6, 7)[word % 7] for word in range(n_classes)])
    return make(n_classes, partition=Partition(cluster_of, 9, n_own=-(-n_classes // 4) + spare), **options)


def assert_best(found, dense, atol=1e-5):
    """Values and words (T, k) are the best of the dense distribution (T, V), each word once."""
    values, indices = found
    k = values.shape[1]
    torch.testing.assert_close(values, dense.topk(k).values, rtol=1e-5, atol=atol)
    torch.testing.assert_close(dense.gather(1, indices), values, rtol=1e-5, atol=atol)
    assert all(len(set(row)) == k for row in indices.tolist())


SHAPES = {
    "default": make,
    "empty clusters": with_empty_clusters,
    "one cluster": lambda **options: make(n_clusters=1, **options),
    "as many clusters as words": lambda **options: make(n_clusters=53, **options),
    "two words": lambda **options: make(2, **options),
    "three words": lambda **options: make(3, **options),
    "no projection": lambda **options: make(projection=False, **options),
    "no bias": lambda **options: make(bias=False, **options),
    "relu": lambda **options: make(activation="relu", **options),
    "own words": with_own_words,
    "one own word": lambda **options: make(own_words=1, **options),
    "own words, no projection, no bias": lambda **options: make(own_words=7, projection=False, bias=False, **options),
    "own words, relu": lambda **options: with_own_words(activation="relu", **options),
    "places for own words, all empty": lambda **options: make(counts=None, own_words=9, **options),
    "all own words but two": lambda **options: make(own_words=51, **options),
    "all own words": lambda **options: make(own_words=53, **options),
}
