"""The speed of beam search for titles on a CPU: exactly pruned, and over all words in every step."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from coterie.softmax import SelfOrganizedSoftmax
from coterie_lab.heads.registry import Head
from coterie_lab.models.beam import TopK
from coterie_lab.tasks.summarization.settings import Decoding
from coterie_lab.tasks.summarization.trained import Trained
from coterie_lab.training.run import read_json, write_json

SIDE_BY_SIDE = (1, 16)  # sentences at a time
ROUNDS = 2  # both ways alternate, so that other load affects both; the fastest round counts

Speed = dict[str, Any]


def speeds(runs: dict[str, Path], lines: Sequence[str], file: Path) -> list[Speed]:
    """Measures the models of runs, by their labels, on the same sentences; what `file` knows is not measured again."""
    known = {(one["name"], one["sentences"], one["batch"]): one for one in (read_json(file) if file.exists() else [])}
    wanted = [(label, len(lines), batch) for label in runs for batch in SIDE_BY_SIDE]
    for label, n, batch in wanted:
        if (label, n, batch) not in known:
            known[label, n, batch] = {"name": label, "batch": batch, **_measure(runs[label], lines, batch)}
            write_json(file, list(known.values()))
    return [known[one] for one in wanted]


def _measure(path: Path, lines: Sequence[str], batch: int) -> Speed:
    """Searches both ways with the model of a run; only over all words if its head cannot prune."""
    trained, decoding = Trained.open(path, "cpu").of_tokens(), Decoding(batch=batch)
    head = cast(Head, trained.model.head)

    def dense(hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        values, words = head.log_prob(hidden).topk(k)
        return values, words

    ways: dict[str, TopK | None] = {"dense": dense}
    if isinstance(head, SelfOrganizedSoftmax):
        ways["pruned"] = None  # its own
    seconds: dict[str, float] = dict.fromkeys(ways, math.inf)
    titles: dict[str, list[str]] = {}
    for _ in range(ROUNDS):
        for way, topk in ways.items():
            begun = time.perf_counter()
            titles[way] = list(trained.summarize(lines, decoding, topk))
            seconds[way] = min(seconds[way], time.perf_counter() - begun)
    both = zip(titles["pruned"], titles["dense"], strict=True) if "pruned" in titles else None
    return {
        "sentences": len(lines),
        "threads": torch.get_num_threads(),
        "dense_seconds": seconds["dense"],
        "pruned_seconds": seconds.get("pruned"),
        "equal": None if both is None else sum(a == b for a, b in both),  # titles that are the same in both searches
    }
