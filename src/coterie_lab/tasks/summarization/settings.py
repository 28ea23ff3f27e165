"""The settings of a summarizer's run and the presets they start from; how its clusters are learned, how it decodes."""

from dataclasses import dataclass, replace
from typing import Any

from coterie_lab.options import check, option
from coterie_lab.tasks.language import settings as language
from coterie_lab.training.settings import AS_PRINTED, Keep, ModelSettings


@dataclass(frozen=True, kw_only=True)
class Settings(ModelSettings):
    """The model, its head, the size of a batch, and how to train."""

    epochs: int = 12
    learning_rate: float = 0.003
    clip: float | None = 5.0
    weight_decay: float = 1e-6
    dropout: float = 0.6
    tied: bool = True
    keep: Keep = "last"  # titles still improve when perplexity no longer does
    bidirectional: bool = option(True, "read the sentence from both ends", "model", flags="--bidirectional/--one-way")
    look_at_words: bool = option(True, "let the attention see the words' vectors in addition to the states", "model")
    input_feeding: bool = option(False, "feed the head's input for a word into the next step; slower", "model")
    batch: int = option(512, "pairs in a batch", "data", least=1)


# "paper" is what the paper describes: one reading direction, no dropout, no clipping, a constant learning rate.
PRESETS: dict[str, dict[str, Any]] = {
    "best": {},
    "paper": {
        "bidirectional": False, "look_at_words": False, "input_feeding": False, "tied": False, "dropout": 0.0,
        "epochs": 15, "learning_rate": 0.001, "schedule": "constant", "clip": None, "batch": 128, "keep": "best",
    },
}  # fmt: skip

# Head options of the preset "best".
_SMOOTHED: dict[str, Any] = {"label_smoothing": 0.1}
_TWO_LEVEL: dict[str, Any] = {**_SMOOTHED, "projection": False}
HEAD_OPTIONS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("full", "full-compiled"), _SMOOTHED),
    **dict.fromkeys(("self-organized", "random-clusters", "hsm-frequency", "hsm-similarity"), _TWO_LEVEL),
}


def from_preset(preset: str = "best", clusters: bool = False, **given: Any) -> Settings:
    """The settings of a preset, with those in `given` replaced; `clusters`: whether the head gets fixed clusters."""
    settings = Settings.from_presets(PRESETS, preset, given)
    usual = (HEAD_OPTIONS if preset == "best" else AS_PRINTED).get(settings.head, {})
    if settings.head == "self-organized" and (clusters or "partition" in settings.head_options):
        usual = {**usual, "reorganize_every": None}
    return replace(settings, head_options={**usual, **settings.head_options})


# The language model that learns clusters reads "both" sentences and titles, or as in the paper "titles" alone. For
# "both", the model is like the summarizer: tied, without projections.
USUAL: dict[str, dict[str, Any]] = {
    "both": {"epochs": 8, "tied": True, "dropout": 0.5, "head_options": {"projection": False}},
    "titles": {"epochs": 8, "sequences": 64},
}


def language_settings(reading: str, preset: str = "best", **given: Any) -> language.Settings:
    """The settings of the language model that learns clusters, with those in `given` replaced."""
    usual = USUAL[reading]
    options = {**usual.get("head_options", {}), **given.pop("head_options", {})}
    return language.from_preset(preset, **{**usual, **given, "head_options": options})


@dataclass(frozen=True)
class Decoding:
    """The settings of the beam search for titles."""

    beam: int = option(5, "hypotheses kept", least=1)
    longest: int = option(30, "the most words of a title", flags="--length", least=1)
    end: bool = True  # False: the end is suppressed and every title has exactly `longest` words, as DUC is scored
    penalty: float = option(0.5, "compare titles by log P / length ^ this", flags="--length-penalty", least=0, most=10)
    replace_unknown: bool = option(False, "replace <unk> by the word the attention is on", flags="--replace-unknown")
    batch: int = option(32, "sentences searched side by side", least=1)

    def __post_init__(self) -> None:
        check(self)
