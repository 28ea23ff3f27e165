"""The clusters of a trained model, to read: the paper's Table 3, words that stand alone, and the neighbours of a word.

Shapes: V words, C clusters.
"""

from dataclasses import dataclass
from difflib import get_close_matches

import torch
from torch import Tensor

from coterie.clustering.neighbours import mass, nearest, next_best
from coterie_lab.tasks.language.trained import Trained


@dataclass(frozen=True)
class Cluster:
    """A cluster and its words, frequent ones first; or the words that stand alone."""

    number: int | None  # None: these words stand alone
    size: int
    share: float  # of the training text
    words: list[str]


@dataclass(frozen=True)
class Company:
    """A word's cluster, the nearest words in it, and the clusters that suit it next best; none if it stands alone."""

    word: str
    cluster: Cluster | None
    neighbours: list[str]
    next_best: list[Cluster]


def clusters(trained: Trained, length: int | None = None) -> list[Cluster]:
    """All clusters that have words, from frequent to rare; `length`: how many words of each, None for all."""
    partition = trained.organized.partition
    order = mass(partition, trained.counts).argsort(descending=True, stable=True).tolist()
    sizes = partition.sizes.tolist()
    return [cluster(trained, number, length) for number in order if sizes[number]]


def table(trained: Trained, n: int = 8, length: int = 12) -> list[Cluster]:
    """A few clusters, spread evenly from frequent to rare (the paper's Table 3)."""
    # Clusters of one or two very frequent words show nothing.
    readable = [found for found in clusters(trained, length) if found.size > 2] or clusters(trained, length)
    n = min(n, len(readable))
    return [readable[round(place * (len(readable) - 1) / max(n - 1, 1))] for place in range(n)]


def alone(trained: Trained, length: int | None = None) -> Cluster | None:
    """The words that stand alone; None if there are none."""
    found = _cluster(trained, None, trained.organized.partition.own, length)
    return found if found.size else None


def cluster(trained: Trained, number: int, length: int | None) -> Cluster:
    """One cluster."""
    return _cluster(trained, number, trained.organized.partition.members(number), length)


def _cluster(trained: Trained, number: int | None, members: Tensor, length: int | None) -> Cluster:
    """What is to be known of these words."""
    members = members.cpu()
    counts = trained.counts[members]
    frequent = members[counts.argsort(descending=True, stable=True)][:length]
    share = float(counts.sum() / trained.counts.sum())
    return Cluster(number, members.numel(), share, [trained.words[word] for word in frequent.tolist()])


def company(trained: Trained, word: str, length: int = 12, runners_up: int = 3) -> Company:
    """The neighbours of one word."""
    if word not in trained.id_of:
        close = get_close_matches(word, trained.words, 3)
        hint = f"; it has {', '.join(close)}" if close else ""
        raise ValueError(f"{word!r} is not in the vocabulary of {len(trained.words):,} words{hint}")
    head, at = trained.organized, trained.id_of[word]
    own = int(head.partition.cluster_of[at])
    if own == head.n_clusters:
        return Company(word, None, [], [])
    members = head.partition.members(own)
    near = members[nearest(head, own, length)[int((members == at).nonzero())]].tolist()
    others = next_best(head, torch.tensor([at], device=trained.device), runners_up)[0].tolist()
    found = [cluster(trained, number, length) for number in others if number >= 0]
    return Company(word, cluster(trained, own, length), [trained.words[other] for other in near], found)
