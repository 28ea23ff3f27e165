"""A trained summarizer, read from its run's folder for use.

Shapes: V words.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from coterie.clustering.partition import Partition
from coterie_lab.data import normalise
from coterie_lab.data.corpus import EOS
from coterie_lab.heads import Material
from coterie_lab.models.summarizer import Summarizer
from coterie_lab.tasks.language.trained import saved, saved_clusters, whole
from coterie_lab.tasks.summarization.build import build
from coterie_lab.tasks.summarization.settings import Settings
from coterie_lab.tasks.summarization.train import KIND, PARTITION
from coterie_lab.training.device import choose_device
from coterie_lab.training.settings import Device


@dataclass(frozen=True)
class Trained:
    """A model, its words, and how text is to be split for it."""

    path: Path
    model: Summarizer
    settings: Settings
    words: list[str]
    raw: bool  # whether it was trained on raw text, tokenised by us
    longest: int  # words of a sentence that are read
    device: torch.device

    @classmethod
    def open(cls, path: Path, device: Device = "auto") -> "Trained":
        """The model that a run kept."""
        config, content, vocabulary = saved(path, KIND, "summarize")
        where = choose_device(device)
        with whole(path):
            settings = Settings.from_dict(config["settings"])
            partition = Partition.load(path / PARTITION) if (path / PARTITION).exists() else None
            words = vocabulary["words"]
            counts = torch.tensor(vocabulary["counts"], dtype=torch.int64)
            # What a head was made from is in its state: no titles are read again, no clusters are looked for.
            learned = None if partition is not None else saved_clusters(content["model"])
            material = Material(words, np.empty(0, np.int64), learned)
            model = build(settings, counts, words.index(EOS), partition, material)
            model.load_state_dict(content["model"])
            how = vocabulary["source"]["settings"]
            return cls(path, model.to(where).eval(), settings, words, how["raw"], how["longest_article"], where)

    def split(self, line: str) -> list[str]:
        """All words of a sentence, split as those it was trained on."""
        return normalise.article(line) if self.raw else normalise.ready(line)

    def tokens(self, line: str) -> list[str]:
        """Those that are read."""
        return self.split(line)[: self.longest]

    def ids(self, tokens: list[str]) -> list[int]:
        """Their numbers; unknown ones are <unk>."""
        return [self.id_of.get(token, 0) for token in tokens]

    @cached_property
    def id_of(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}
