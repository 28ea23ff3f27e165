"""Inference with a trained layer: probabilities, the most probable words, steps of a beam search, samples.

Each is a function of the layer's parameters (`Vectors`), its partition and hidden vectors; the layer's methods of the
same names call them.

Shapes: T rows, B hypotheses, D width, V words (classes), C clusters, N words that stand alone, S words of a cluster.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.checks import check_draw, check_hidden, check_k
from coterie.clustering.partition import Partition
from coterie.loss.levels import Vectors, cluster_logits, project, root_log_softmax, root_rows, root_shift
from coterie.search import exact, sampling
from coterie.search.words import Words, on_gpu

COLDEST = torch.finfo(torch.float32).tiny  # a temperature below it counts as 0: only the best word is left


class Levels(NamedTuple):
    """Both levels of a batch, in the form that the search takes."""

    words: Words
    word_hidden: Tensor  # h_w (T, D)
    log_root: Tensor  # log P(c|h) of the clusters, then log P(w|h) of the words that stand alone (T, C + N)


def levels(vectors: Vectors, partition: Partition, hidden: Tensor, normalized: bool = True) -> Levels:
    """Both levels of hidden vectors (..., D), flattened to rows.

    Unless `normalized`, the root may lack a constant per row: on a GPU that saves a kernel launch.
    """
    check_hidden(hidden, vectors.weight)
    cluster_hidden, word_hidden = project(hidden.reshape(-1, hidden.shape[-1]), vectors)
    root, weight = root_rows(vectors, partition)
    shift = root_shift(vectors, partition)
    words = Words(weight, vectors.bias, partition)
    if gpu := on_gpu(words, cluster_hidden):
        logits = F.linear(cluster_hidden, root, shift)
        return Levels(words, word_hidden, gpu.shares(logits) if normalized else logits)
    return Levels(
        words, word_hidden, root_log_softmax(cluster_logits(cluster_hidden, root, shift), partition.root_sizes)
    )


def log_prob(vectors: Vectors, partition: Partition, hidden: Tensor) -> Tensor:
    """log P(w|h) of every class: (..., D) → (..., V)."""
    words, word_hidden, log_root = levels(vectors, partition, hidden)
    return words.log_prob(word_hidden, log_root).reshape(*hidden.shape[:-1], partition.n_words)


def root_log_prob(vectors: Vectors, partition: Partition, hidden: Tensor) -> Tensor:
    """log P of every cluster, then of every word that stands alone, -inf for empty columns: (..., D) → (..., C + N).

    Their probabilities sum to one.
    """
    log_root = levels(vectors, partition, hidden).log_root
    return log_root.reshape(*hidden.shape[:-1], log_root.shape[1])


def cluster_log_prob(vectors: Vectors, partition: Partition, hidden: Tensor) -> Tensor:
    """log P(c|h) of every cluster, -inf for an empty one: (..., D) → (..., C)."""
    return root_log_prob(vectors, partition, hidden)[..., : partition.n_clusters]


def member_log_prob(vectors: Vectors, partition: Partition, hidden: Tensor, cluster: int) -> Tensor:
    """log P(w|c, h) of the words of one cluster, in the order of `partition.members`: (..., D) → (..., S)."""
    words, word_hidden, _ = levels(vectors, partition, hidden)
    members = partition.members(cluster)
    return words.logits_of(word_hidden, members).log_softmax(-1).reshape(*hidden.shape[:-1], members.numel())


@torch.no_grad()
def topk(vectors: Vectors, partition: Partition, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most probable classes, best first: (..., D) → log P and classes, both (..., k)."""
    check_k(k, partition.n_words)
    values, indices = exact.topk(*levels(vectors, partition, hidden, normalized=False), k)
    return values.reshape(*hidden.shape[:-1], k), indices.reshape(*hidden.shape[:-1], k)


@torch.no_grad()
def extend(
    vectors: Vectors, partition: Partition, hidden: Tensor, score: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """A step of a beam search: (..., B, D), (..., B) → log P, hypothesis and word, best first, each (..., k)."""
    n_classes = partition.n_words
    if score.shape != hidden.shape[:-1] or not score.dim():
        raise ValueError(
            f"score must have one number per hypothesis, shape {tuple(hidden.shape[:-1])}; got {tuple(score.shape)}"
        )
    if not 1 <= k <= score.shape[-1] * n_classes:
        raise ValueError(
            f"k must be from 1 to {score.shape[-1] * n_classes}, the number of hypotheses times classes; got {k}"
        )
    questions = score.reshape(-1, score.shape[-1])  # (T, B)
    values, extensions = exact.extend(*levels(vectors, partition, hidden, normalized=False), questions, k)
    shape = (*score.shape[:-1], k)
    hypothesis, word = extensions // n_classes, extensions % n_classes
    return values.reshape(shape), hypothesis.reshape(shape), word.reshape(shape)


@torch.no_grad()
def sample(
    vectors: Vectors,
    partition: Partition,
    hidden: Tensor,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generator: torch.Generator | None,
) -> Tensor:
    """Draws one class per hidden vector, (..., D) → (...): temperature first, then top-k, then top-p."""
    check_draw(partition.n_words, temperature, top_k, top_p)
    if temperature < COLDEST:
        return topk(vectors, partition, hidden, 1)[1].squeeze(-1)
    drawn = sampling.sample(*levels(vectors, partition, hidden), temperature, top_k, top_p, generator)
    return drawn.reshape(hidden.shape[:-1])
