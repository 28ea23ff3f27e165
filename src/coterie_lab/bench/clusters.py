"""Times clusters: computed before training, or moved by one reorganization of a million words in a thousand.

In the reorganization, every word has been seen and nearly all must move, which is the worst case.
"""

import resource
import time
from dataclasses import asdict
from typing import Any

import torch

from coterie import SelfOrganizedSoftmax
from coterie.checks import default_clusters
from coterie_lab.bench.methods import prefer_at_random
from coterie_lab.bench.shapes import zipf_counts
from coterie_lab.data.corpus import Corpus
from coterie_lab.heads.brown import brown_clusters
from coterie_lab.heads.similarity import similar_words, vectors_from_text

WORDS, CLUSTERS, WIDTH = 1_000_000, 1_000, 64


def beforehand(data: str) -> dict[str, Any]:
    """The time to compute clusters from the text, which training time does not include."""
    corpus = Corpus.open(data)
    n_clusters = default_clusters(corpus.n_words)
    begun = time.perf_counter()
    similar_words(vectors_from_text(corpus.train, corpus.n_words), corpus.counts, n_clusters)
    half = time.perf_counter()
    brown_clusters(corpus.train, corpus.counts, n_clusters)
    seconds = {"k-means": half - begun, "brown": time.perf_counter() - half}
    sizes = {"words": len(corpus.train), "vocabulary": corpus.n_words, "clusters": n_clusters}
    return {**sizes, "seconds": seconds}


def reorganization(words: int = WORDS, clusters: int = CLUSTERS) -> dict[str, Any]:
    """Time and memory of one reorganization."""
    torch.manual_seed(0)
    begun = time.perf_counter()
    head = SelfOrganizedSoftmax(WIDTH, words, zipf_counts(words)[torch.randperm(words)], n_clusters=clusters)
    built = time.perf_counter()
    prefer_at_random(head)
    before, start = _peak_gb(), time.perf_counter()
    moved = head.reorganize()
    return {
        "words": words, "clusters": clusters, "width": WIDTH, "building_seconds": built - begun,
        "reorganizing_seconds": time.perf_counter() - start, "extra_gb": _peak_gb() - before, "moved": asdict(moved),
    }  # fmt: skip


def _peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
