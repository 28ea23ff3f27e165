"""A trained summarizer, for use.

Shapes: V words.
"""

from dataclasses import replace
from typing import Self

from torch import Tensor

from coterie.clustering.partition import Partition
from coterie_lab.data import normalise
from coterie_lab.data.folder import EOS
from coterie_lab.heads import Material
from coterie_lab.models.summarizer import Summarizer
from coterie_lab.tasks.summarization.build import build
from coterie_lab.tasks.summarization.settings import Settings
from coterie_lab.tasks.summarization.train import KIND
from coterie_lab.training import trained
from coterie_lab.training.run import Run


class Trained(trained.Trained[Summarizer, Settings]):
    """A summarizer, its words, and how sentences are split into them."""

    kind, command, settings_class = KIND, "summarize", Settings

    @staticmethod
    def build(run: Run, settings: Settings, words: list[str], counts: Tensor, material: Material) -> Summarizer:
        given = Partition.load(run.partition) if run.partition.exists() else None
        if given is not None:
            material = replace(material, partition=None)
        return build(settings, counts, words.index(EOS), given, material)

    def of_tokens(self) -> Self:
        """The same summarizer for sentences that are split into words already, as prepared text is."""
        return replace(self, prepared={**self.prepared, "raw": False})

    def split(self, line: str) -> list[str]:
        """All words of a sentence, split as those it was trained on."""
        return normalise.article(line) if self.prepared["raw"] else normalise.ready(line)

    def tokens(self, text: str) -> list[str]:
        """The words of a sentence that are read."""
        return self.split(text)[: self.longest]

    @property
    def longest(self) -> int:
        """The most words of a sentence that are read."""
        most: int = self.prepared["longest_article"]
        return most
