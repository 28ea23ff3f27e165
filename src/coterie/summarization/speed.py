"""How fast titles are searched for on a CPU: exactly pruned, and over all words of every step."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from coterie.baselines.registry import Head
from coterie.summarization.generate import Decoding, summarize
from coterie.summarization.trained import Trained

ROUNDS = 3  # each way in turn, so that what else the machine does meets both; the fastest round counts


@dataclass(frozen=True)
class Speed:
    """Of one model, on the same sentences both ways."""

    name: str
    sentences: int
    batch: int
    threads: int
    pruned_seconds: float
    dense_seconds: float
    equal: int  # titles that are the same both ways


def measure(name: str, path: Path, lines: Sequence[str], batch: int) -> Speed:
    """Searches both ways with the model of a run."""
    trained = replace(Trained.open(path, "cpu"), raw=False)  # prepared text is tokens already
    decoding = replace(Decoding(), batch=batch)
    head = cast(Head, trained.model.head)

    def dense(hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        values, words = head.log_prob(hidden).topk(k)
        return values, words

    seconds: dict[str, list[float]] = {"pruned": [], "dense": []}
    titles: dict[str, list[str]] = {}
    for _ in range(ROUNDS):
        for way, topk in (("pruned", None), ("dense", dense)):
            begun = time.perf_counter()
            titles[way] = list(summarize(trained, lines, decoding, topk))
            seconds[way].append(time.perf_counter() - begun)
    equal = sum(a == b for a, b in zip(titles["pruned"], titles["dense"], strict=True))
    return Speed(name, len(lines), batch, torch.get_num_threads(), min(seconds["pruned"]), min(seconds["dense"]), equal)
