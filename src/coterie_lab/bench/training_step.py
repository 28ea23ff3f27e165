"""A whole update of the language model, head against head: `python -m coterie_lab.bench.training_step DATA OUT.json`.

DATA is a folder from `coterie lm prepare`. The heads take turns, a few updates each, so that whatever else the machine
does meanwhile happens to all of them; the figure is the median.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from coterie_lab.data.corpus import Corpus
from coterie_lab.experiments.language.variants import VARIANTS
from coterie_lab.tasks.language.train import LanguageTask
from coterie_lab.training import optimizers
from coterie_lab.training.device import choose_device, choose_precision
from coterie_lab.training.distributed import World
from coterie_lab.training.environment import describe
from coterie_lab.training.graph import graphed
from coterie_lab.training.update import Update

NAMES = ("self-organized", "full", "full-eager", "full-compiled", "adaptive")
ROUNDS = 7
EACH = {"cpu": 2, "cuda": 100}  # updates a turn


class Contestant:
    """A model with one head, ready to train."""

    def __init__(self, name: str, corpus: Corpus, device: torch.device) -> None:
        settings = VARIANTS[name].settings()
        self.task = LanguageTask(corpus, settings, device, World())
        optimizer = optimizers.build(settings, self.task.groups())
        update = Update(self.task, optimizer, settings.clip, device, choose_precision(settings.precision, device))
        self.update = graphed(update, settings.graph, self.task.graphable, print)
        self.step = 0
        self.seconds: list[float] = []

    def turn(self, updates: int) -> float:
        """Seconds an update."""
        wait: Callable[[], None] = torch.cuda.synchronize if self.task.device.type == "cuda" else lambda: None
        wait()
        start = time.perf_counter()
        for _ in range(updates):
            self.update(*self.task.batch(self.step))
            self.task.updated()
            self.step += 1
        wait()
        return (time.perf_counter() - start) / updates


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python -m coterie_lab.bench.training_step DATA OUT.json")
    corpus, device = Corpus.open(sys.argv[1]), choose_device("auto")
    # On a CPU there are no graphs to leave out, and compiling is a matter of launches.
    names = NAMES if device.type == "cuda" else [name for name in NAMES if name not in ("full-eager", "full-compiled")]
    contestants = {name: Contestant(name, corpus, device) for name in names}
    for one in contestants.values():
        one.turn(1 if device.type == "cpu" else 10)  # warms up, records
    for _ in range(ROUNDS):
        for one in contestants.values():
            one.seconds.append(one.turn(EACH[device.type]))
    ms = {name: statistics.median(one.seconds) * 1e3 for name, one in contestants.items()}
    result = {
        "environment": describe(),
        "vocabulary": corpus.n_words,
        "milliseconds": ms,
        "over_self_organized": {name: value / ms["self-organized"] for name, value in ms.items()},
    }
    text = json.dumps(result, indent=1) + "\n"
    Path(sys.argv[2]).write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
