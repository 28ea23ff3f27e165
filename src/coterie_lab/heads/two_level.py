"""Two-level softmaxes: the layer itself over clusters that are given, found beforehand, or left to chance.

Shapes: V words, C clusters.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray
from torch import Tensor

from coterie.checks import check_clusters, check_counts, default_clusters
from coterie.clustering.partition import Partition
from coterie.softmax import SelfOrganizedSoftmax
from coterie_lab.heads.brown import brown_clusters
from coterie_lab.heads.frequency import By, frequency_bins
from coterie_lab.heads.similarity import similar_words
from coterie_lab.heads.word_vectors import vectors_from_file, vectors_from_text

Given = Partition | str | Path | None  # clusters, or the file that `Partition.save` wrote
Words = Sequence[str] | None  # for a file that names its words


def self_organized(
    in_features: int, n_classes: int, counts: Tensor, partition: Given = None, vocabulary: Words = None, **options: Any
) -> SelfOrganizedSoftmax:
    """The layer; `partition`: where it starts, and with `reorganize_every=None` stays."""
    given = opened(partition, vocabulary)
    return SelfOrganizedSoftmax(in_features, n_classes, counts, partition=given, **options)


def self_organized_paper(
    in_features: int, n_classes: int, counts: Tensor, partition: Given = None, vocabulary: Words = None, **options: Any
) -> SelfOrganizedSoftmax:
    """The layer as the paper prints it."""
    given = opened(partition, vocabulary)
    if given is not None:
        options.setdefault("n_clusters", given.n_clusters)
    return SelfOrganizedSoftmax.as_in_paper(in_features, n_classes, counts, partition=given, **options)


def random_clusters(
    in_features: int, n_classes: int, counts: Tensor, partition: Given = None, vocabulary: Words = None, **options: Any
) -> SelfOrganizedSoftmax:
    """Clusters that stay what chance made them."""
    return _fixed(in_features, n_classes, counts, opened(partition, vocabulary), options)


def hsm_frequency(
    in_features: int,
    n_classes: int,
    counts: Tensor,
    n_clusters: int | None = None,
    by: By = "frequency",
    partition: Given = None,
    vocabulary: Words = None,
    **options: Any,
) -> SelfOrganizedSoftmax:
    """Bins of words of like frequency, each with the same share of the text, or (`by="root"`) of its square roots."""
    found = opened(partition, vocabulary)
    if found is None:
        found = frequency_bins(check_counts(counts, n_classes), _clusters(n_clusters, n_classes), by)
    return _fixed(in_features, n_classes, counts, found, options)


def hsm_similarity(
    in_features: int,
    n_classes: int,
    counts: Tensor,
    n_clusters: int | None = None,
    by: Literal["k-means", "brown"] = "k-means",
    gamma: float = 1.5,
    vectors: Tensor | str | Path | None = None,
    text: NDArray[Any] | None = None,
    partition: Given = None,
    vocabulary: Words = None,
    **options: Any,
) -> SelfOrganizedSoftmax:
    """Clusters of words with like vectors: of those given, (V, E) or a file of `numpy.save`, or of the text's own.

    by: how they are found, by k-means over the vectors or, without any, as the text's Brown clusters.
    """
    found = opened(partition, vocabulary)
    if found is None:
        if by not in ("k-means", "brown"):
            raise ValueError(f"by must be 'k-means' or 'brown'; got {by!r}")
        counted, wanted = check_counts(counts, n_classes), _clusters(n_clusters, n_classes)
        if by == "brown":
            found = brown_clusters(_text_alone(text, vectors), counted, wanted, gamma)
        else:
            found = similar_words(_vectors(vectors, text, n_classes), counted, wanted, gamma)
    return _fixed(in_features, n_classes, counts, found, {**options, "gamma": gamma})


def _vectors(vectors: Tensor | str | Path | None, text: NDArray[Any] | None, n_classes: int) -> Tensor:
    """The words' vectors, (V, E): those given, or made from the text."""
    if isinstance(vectors, (str, Path)):
        return vectors_from_file(vectors)
    if vectors is None and text is not None:
        return vectors_from_text(text, n_classes)
    if vectors is None:
        raise ValueError(
            "clusters of similar words need vectors= (one for each word, or a file of them), text= (the training "
            "text, as word numbers) or partition="
        )
    return vectors


def _text_alone(text: NDArray[Any] | None, vectors: Tensor | str | Path | None) -> NDArray[Any]:
    """The text, for clusters that are made from nothing else."""
    if vectors is not None:
        raise ValueError("by='brown' makes clusters from the text alone; leave out vectors=, or give by='k-means'")
    if text is None:
        raise ValueError("Brown clusters need text= (the training text, as word numbers) or partition=")
    return text


def _clusters(n_clusters: int | None, n_classes: int) -> int:
    """C, √V where it is not given."""
    return default_clusters(n_classes) if n_clusters is None else check_clusters(n_clusters, n_classes)


def opened(partition: Given, vocabulary: Words) -> Partition | None:
    """The partition itself, read from its file if that was given."""
    return Partition.load(partition, vocabulary) if isinstance(partition, (str, Path)) else partition


def _fixed(
    in_features: int, n_classes: int, counts: Tensor, partition: Partition | None, options: dict[str, Any]
) -> SelfOrganizedSoftmax:
    fixed: dict[str, Any] = {"partition": partition, "reorganize_every": None}
    return SelfOrganizedSoftmax(in_features, n_classes, counts, **{**options, **fixed})
