"""Two-level softmaxes: the layer over clusters that are given, computed beforehand, or random.

Shapes: V words, C clusters, E width of a word vector, N words of text.
"""

from pathlib import Path
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.checks import check_clusters, check_counts, default_clusters
from coterie.clustering.partition import Partition
from coterie.softmax import SelfOrganizedSoftmax
from coterie_lab.heads.brown import brown_clusters
from coterie_lab.heads.registry import register
from coterie_lab.heads.similarity import similar_words, vectors_from_file, vectors_from_text

By = Literal["frequency", "root"]

register("self-organized")(SelfOrganizedSoftmax)


@register("self-organized-paper")
def self_organized_paper(
    in_features: int, n_classes: int, counts: Tensor, partition: Partition | None = None, **options: Any
) -> SelfOrganizedSoftmax:
    """The layer as printed in the paper."""
    if partition is not None:
        options.setdefault("n_clusters", partition.n_clusters)
    return SelfOrganizedSoftmax.as_in_paper(in_features, n_classes, counts, partition=partition, **options)


@register("random-clusters")
def random_clusters(
    in_features: int, n_classes: int, counts: Tensor, partition: Partition | None = None, **options: Any
) -> SelfOrganizedSoftmax:
    """The layer over random clusters, which stay fixed."""
    fixed = {"partition": partition, "reorganize_every": None}
    return SelfOrganizedSoftmax(in_features, n_classes, counts, **{**options, **fixed})


@register("hsm-frequency")
def hsm_frequency(
    in_features: int, n_classes: int, counts: Tensor, n_clusters: int | None = None, by: By = "frequency",
    partition: Partition | None = None, **options: Any,
) -> SelfOrganizedSoftmax:  # fmt: skip
    """Bins of words of like frequency, each with the same share of the text, or (`by="root"`) of its square roots."""
    if partition is None:
        partition = frequency_bins(check_counts(counts, n_classes), _clusters(n_clusters, n_classes), by)
    return random_clusters(in_features, n_classes, counts, partition, **options)


@register("hsm-similarity")
def hsm_similarity(
    in_features: int, n_classes: int, counts: Tensor, n_clusters: int | None = None,
    by: Literal["k-means", "brown"] = "k-means", gamma: float = 1.5, vectors: Tensor | str | Path | None = None,
    text: NDArray[Any] | None = None, partition: Partition | None = None, **options: Any,
) -> SelfOrganizedSoftmax:  # fmt: skip
    """Clusters of words with like vectors: of those given, (V, E) or a file of `numpy.save`, or of the text's own.

    by: how they are found, by k-means over the vectors or, without any, as the text's Brown clusters.
    """
    if partition is None:
        counts, wanted = check_counts(counts, n_classes), _clusters(n_clusters, n_classes)
        if by == "brown":
            if vectors is not None:
                raise ValueError("by='brown' makes clusters from the text alone; leave out vectors=, or by='k-means'")
            if text is None:
                raise ValueError("Brown clusters need text= (the training text, as word numbers) or partition=")
            partition = brown_clusters(text, counts, wanted, gamma)
        elif by == "k-means":
            if isinstance(vectors, (str, Path)):
                vectors = vectors_from_file(vectors)
            elif vectors is None and text is not None:
                vectors = vectors_from_text(text, n_classes)
            if vectors is None:
                raise ValueError(
                    "clusters of similar words need vectors= (one for each word, or a file of them), text= (the "
                    "training text, as word numbers) or partition="
                )
            partition = similar_words(vectors, counts, wanted, gamma)
        else:
            raise ValueError(f"by must be 'k-means' or 'brown'; got {by!r}")
    return random_clusters(in_features, n_classes, counts, partition, gamma=gamma, **options)


def frequency_bins(counts: Tensor, n_clusters: int, by: By = "frequency") -> Partition:
    """Words from frequent to rare, cut into C bins of equal mass (Mikolov et al. 2011); `counts` (V,).

    A very frequent word fills several bins. by: what mass is summed from, the words' frequency or its square root,
    which leaves the last bins fewer words.
    """
    if by not in ("frequency", "root"):
        raise ValueError(f"by must be 'frequency' or 'root'; got {by!r}")
    order = counts.argsort(descending=True, stable=True)
    share = counts[order].clamp(min=1).double()
    mass = (share.sqrt() if by == "root" else share).cumsum(0)
    before = torch.cat((mass.new_zeros(1), mass[:-1]))
    wanted = (before / mass[-1] * n_clusters).long().clamp(max=n_clusters - 1)  # (V,) in order
    cluster_of = torch.empty_like(order)
    cluster_of[order] = wanted
    return Partition(cluster_of, n_clusters)


def _clusters(n_clusters: int | None, n_classes: int) -> int:
    """C, by default √V."""
    return default_clusters(n_classes) if n_clusters is None else check_clusters(n_clusters, n_classes)
