"""Times a whole update of the language model with each head; the heads alternate, a few updates each."""

from typing import Any

import torch

from coterie_lab.bench.timing import in_loops
from coterie_lab.data.corpus import Corpus
from coterie_lab.experiments.language.variants import VARIANTS
from coterie_lab.tasks.language.train import LanguageTask
from coterie_lab.training import optimizers
from coterie_lab.training.device import choose_device, choose_precision
from coterie_lab.training.distributed import World
from coterie_lab.training.graph import graphed
from coterie_lab.training.update import Update

# On a CPU there are no graphs to leave out, and compiling is a matter of launches.
NAMES = {
    "cpu": ("self-organized", "full", "adaptive"),
    "cuda": ("self-organized", "full", "full-eager", "full-compiled", "adaptive"),
}
CALLS = {"cpu": 2, "cuda": 100}  # updates per turn


class Contestant:
    """A model with one head, ready to train."""

    def __init__(self, name: str, corpus: Corpus, device: torch.device) -> None:
        settings = VARIANTS[name].settings()
        self.task = LanguageTask(corpus, settings, device, World())
        optimizer = optimizers.build(settings, self.task.groups())
        update = Update(self.task, optimizer, settings.clip, device, choose_precision(settings.precision, device))
        self.update = graphed(update, settings.graph, self.task.graphable, print)
        self.step = 0

    def __call__(self) -> None:
        """One update."""
        self.update(*self.task.batch(self.step))
        self.task.updated()
        self.step += 1


def measured(data: str) -> dict[str, Any]:
    """Milliseconds an update, by head."""
    corpus, device = Corpus.open(data), choose_device("auto")
    contestants = {name: Contestant(name, corpus, device) for name in NAMES[device.type]}
    in_loops(contestants, device, calls=1 if device.type == "cpu" else 10, rounds=1)  # warms up, records
    ms = {name: loop.wall for name, loop in in_loops(contestants, device, CALLS[device.type]).items()}
    over = {name: value / ms["self-organized"] for name, value in ms.items()}
    return {"vocabulary": corpus.n_words, "milliseconds": ms, "over_self_organized": over}
