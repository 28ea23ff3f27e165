"""How long it takes to make clusters before training: `python -m coterie_lab.bench.beforehand DATA OUT.json`.

DATA is a folder from `coterie lm prepare`. What a plot of training time leaves out for heads with such clusters.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from coterie.checks import default_clusters
from coterie_lab.data.corpus import Corpus
from coterie_lab.heads.brown import brown_clusters
from coterie_lab.heads.similarity import similar_words, vectors_from_text
from coterie_lab.training.environment import describe


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python -m coterie_lab.bench.beforehand DATA OUT.json")
    corpus = Corpus.open(sys.argv[1])
    n_clusters = default_clusters(corpus.n_words)
    ways: dict[str, Callable[[], object]] = {
        "k-means": lambda: similar_words(vectors_from_text(corpus.train, corpus.n_words), corpus.counts, n_clusters),
        "brown": lambda: brown_clusters(corpus.train, corpus.counts, n_clusters),
    }
    seconds = {}
    for name, make in ways.items():
        begun = time.perf_counter()
        make()
        seconds[name] = time.perf_counter() - begun
    result = {
        "environment": describe(), "words": len(corpus.train), "vocabulary": corpus.n_words, "clusters": n_clusters,
        "seconds": seconds,
    }  # fmt: skip
    text = json.dumps(result, indent=1) + "\n"
    Path(sys.argv[2]).write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
