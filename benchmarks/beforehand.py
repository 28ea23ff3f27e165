"""How long it takes to make clusters before training: `python -m benchmarks.beforehand DATA OUT.json`.

DATA is a folder from `coterie lm prepare`. What a plot of training time leaves out for heads with such clusters.
"""

import json
import sys
import time
from pathlib import Path

from coterie.baselines.brown import brown_clusters
from coterie.baselines.similarity import similar_words
from coterie.baselines.word_vectors import vectors_from_text
from coterie.lm.corpus import Corpus
from coterie.options import default_clusters
from coterie.training.environment import describe


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python -m benchmarks.beforehand DATA OUT.json")
    corpus = Corpus.open(sys.argv[1])
    n_clusters = default_clusters(corpus.n_words)
    ways = {
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
