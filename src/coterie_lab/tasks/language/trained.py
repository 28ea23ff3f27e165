"""A trained language model, for use.

Shapes: V words.
"""

from torch import Tensor

from coterie_lab.data.corpus import tokens_of
from coterie_lab.heads import Material
from coterie_lab.models.language import LanguageModel
from coterie_lab.tasks.language.build import build
from coterie_lab.tasks.language.settings import Settings
from coterie_lab.tasks.language.train import KIND
from coterie_lab.training import trained
from coterie_lab.training.run import Run


class Trained(trained.Trained[LanguageModel, Settings]):
    """A language model, its words, and how text is split into them."""

    kind, command, settings_class = KIND, "lm", Settings

    @staticmethod
    def build(run: Run, settings: Settings, words: list[str], counts: Tensor, material: Material) -> LanguageModel:
        return build(settings, counts, material)

    def tokens(self, text: str) -> list[str]:
        """The words of a text, split as the training text was; with <eos>, where that has it, at ends of lines."""
        return tokens_of(text, self.prepared["lower"], self.prepared["eos"])
