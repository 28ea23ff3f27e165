"""One reorganisation of a million words in a thousand clusters: `python -m coterie_lab.bench.reorganization OUT.json`.

Every word has been seen and nothing is where it belongs, the most there can be to do.
"""

import json
import resource
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch

from coterie import SelfOrganizedSoftmax
from coterie_lab.bench.methods import zipf_counts
from coterie_lab.training.environment import describe

WORDS, CLUSTERS, WIDTH = 1_000_000, 1_000, 64


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def main() -> None:
    torch.manual_seed(0)
    start = time.perf_counter()
    head = SelfOrganizedSoftmax(WIDTH, WORDS, zipf_counts(WORDS)[torch.randperm(WORDS)], n_clusters=CLUSTERS)
    built = time.perf_counter() - start
    assert head.statistic is not None
    head.statistic.total.normal_()
    head.statistic.weight.fill_(1.0)
    before, start = peak_gb(), time.perf_counter()
    moved = head.reorganize()
    result = {
        "environment": describe(),
        "words": WORDS,
        "clusters": CLUSTERS,
        "width": WIDTH,
        "building_seconds": built,
        "reorganizing_seconds": time.perf_counter() - start,
        "extra_gb": peak_gb() - before,
        "moved": asdict(moved),
    }
    text = json.dumps(result, indent=1) + "\n"
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
