"""The explorer's data for one model: words and their neighbours, a map of the clusters, and the history of moves.

Everything is plain data for JSON, in which words are ids. Words that stand alone are on no map and have no neighbours.

Shapes: V words, C clusters, S words of a cluster, N clusters with words.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.clustering import neighbours as company
from coterie.softmax import SelfOrganizedSoftmax
from coterie_lab.explorer import treemap
from coterie_lab.explorer.treemap import Floats
from coterie_lab.training.moves import Move, partitions

NEIGHBOURS, RUNNERS_UP, TYPICAL = 8, 3, 6
MOST_MOVES = 3_000_000  # that a page holds
SHAPES = {"wide": (16.0, 10.0), "tall": (9.0, 16.0)}  # of the map, on a desktop and on a phone


@dataclass(frozen=True)
class Organized:
    """A model with clusters, its vocabulary and its history."""

    head: SelfOrganizedSoftmax
    words: list[str]  # V
    counts: Tensor  # (V,) in the training text
    moves: list[Move]  # the moves that led to its partition


@dataclass(frozen=True)
class Atlas:
    """The N clusters that have words, and their positions on the map."""

    numbers: list[int]
    sizes: Floats  # (N,) words in each
    mass: Floats  # (N,) their occurrences in the training text
    typical: list[list[int]]  # the words most typical of each
    places: Floats  # (N, 2)


def atlas(model: Organized) -> Atlas:
    """Computes positions and names for the clusters of a model."""
    head, partition, counts = model.head, model.head.partition, model.counts.cpu()
    sizes = partition.sizes.cpu()
    filled = sizes.nonzero().squeeze(1)
    mass = company.mass(partition, counts)
    typical = company.typicality(head, counts).cpu()
    labels = []
    for number in filled.tolist():
        members = partition.members(number).cpu()
        labels.append(members[typical[members].argsort(descending=True, stable=True)][:TYPICAL].tolist())
    vectors = head.cluster_weight.detach().float().cpu()[filled].double().numpy()
    return Atlas(
        numbers=filled.tolist(), sizes=sizes[filled].double().numpy(), mass=mass[filled].double().numpy(),
        typical=labels, places=treemap.positions(vectors),
    )  # fmt: skip


def explore(model: Organized) -> dict[str, Any]:
    """The words and clusters in the page's format."""
    head, partition, found = model.head, model.head.partition, atlas(model)
    neighbours = torch.full((head.n_classes, NEIGHBOURS), -1)
    for number in found.numbers:
        near = company.nearest(head, number, NEIGHBOURS).cpu()  # (S, up to NEIGHBOURS)
        neighbours[partition.members(number).cpu(), : near.shape[1]] = near
    hue, strength = treemap.colours(found.places)
    everyone = torch.arange(head.n_classes, device=head.weight.device)
    return {
        "words": model.words,
        "counts": model.counts.tolist(),
        "clusterOf": partition.cluster_of.tolist(),
        "alone": head.n_clusters,  # the cluster of a word that stands alone
        "random": partition.random,
        "neighbours": neighbours.flatten().tolist(),  # indices into the members of the word's cluster, padded by -1
        "nextBest": company.next_best(head, everyone, RUNNERS_UP).flatten().tolist(),
        "clusters": [
            {"number": number, "typical": label, "hue": round(float(h)), "strength": round(float(s), 2)}
            for number, label, h, s in zip(found.numbers, found.typical, hue, strength, strict=True)
        ],
        # Four numbers per cluster, in percent of the map's width and height.
        "maps": {
            shape: {
                measure: np.round(treemap.rectangles(area, found.places, *size) / (*size, *size) * 100, 3)
                .ravel()
                .tolist()
                for measure, area in (("mass", found.mass), ("words", found.sizes))
            }
            for shape, size in SHAPES.items()
        },
    }


def history(moves: list[Move]) -> dict[str, Any] | None:
    """The history of moves in the page's format; None if no word ever moved."""
    if len(moves) < 2:
        return None
    start, *later = thinned(moves, MOST_MOVES)
    return {
        "start": {"step": start.step, "clusters": start.clusters.tolist()},
        "every": (len(moves) - 1) / len(later),  # reorganizations that are merged into one entry
        "moves": [
            # Gaps between ids compress better than ids.
            {
                "step": move.step,
                "words": np.diff(move.words, prepend=np.int32(0)).tolist(),
                "clusters": move.clusters.tolist(),
            }
            for move in later
        ],
    }


def thinned(moves: list[Move], most: int) -> list[Move]:
    """At most so many words moved in all (or a single entry): neighbouring reorganizations become one, as often as
    it takes. The first entry, which seats all words, stays."""
    while len(moves) > 2 and sum(move.words.size for move in moves[1:]) > most:
        kept, merged = [moves[0]], None
        for place, (move, before) in enumerate(partitions(moves)):
            if merged is None:
                merged = before.copy(), before
            merged[0][move.words] = move.clusters
            if place % 2 or place == len(moves) - 2:
                words = np.flatnonzero(merged[0] != merged[1]).astype(np.int32)
                kept.append(Move(move.step, words, merged[0][words]))
                merged = None
        moves = kept
    return moves
