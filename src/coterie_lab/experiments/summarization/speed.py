"""How fast titles are searched for on a CPU: exactly pruned, and over all words of every step."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from coterie.softmax import SelfOrganizedSoftmax
from coterie_lab.heads.registry import Head
from coterie_lab.models.beam import TopK
from coterie_lab.tasks.summarization.settings import Decoding
from coterie_lab.tasks.summarization.trained import Trained

ROUNDS = 2  # each way in turn, so that what else the machine does meets both; the faster round counts


@dataclass(frozen=True)
class Speed:
    """Of one model, on the same sentences both ways."""

    name: str
    sentences: int
    batch: int
    threads: int
    dense_seconds: float
    pruned_seconds: float | None  # None: the head knows no shorter way
    equal: int | None  # titles that are the same both ways


def measure(name: str, path: Path, lines: Sequence[str], batch: int) -> Speed:
    """Searches both ways with the model of a run."""
    trained = Trained.open(path, "cpu").of_tokens()
    decoding = replace(Decoding(), batch=batch)
    head = cast(Head, trained.model.head)

    def dense(hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        values, words = head.log_prob(hidden).topk(k)
        return values, words

    ways: dict[str, TopK | None] = {"dense": dense}
    if isinstance(head, SelfOrganizedSoftmax):
        ways["pruned"] = None  # its own
    seconds: dict[str, float] = {}
    titles: dict[str, list[str]] = {}
    for _ in range(ROUNDS):
        for way, topk in ways.items():
            begun = time.perf_counter()
            titles[way] = list(trained.summarize(lines, decoding, topk))
            seconds[way] = min(seconds.get(way, math.inf), time.perf_counter() - begun)
    equal = None
    if "pruned" in titles:
        equal = sum(a == b for a, b in zip(titles["pruned"], titles["dense"], strict=True))
    return Speed(name, len(lines), batch, torch.get_num_threads(), seconds["dense"], seconds.get("pruned"), equal)
