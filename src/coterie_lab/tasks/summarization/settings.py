"""Everything a summarizer's run is told, and two ways to start from."""

from dataclasses import dataclass, replace
from typing import Any

from coterie_lab.training.settings import AS_PRINTED, Keep, ModelSettings, Optimizer, Schedule


@dataclass(frozen=True, kw_only=True)
class Settings(ModelSettings):
    """The model, its head, the size of a batch, and how to train."""

    epochs: int = 12
    optimizer: Optimizer = "adam"
    learning_rate: float = 0.003
    schedule: Schedule = "linear"
    clip: float | None = 5.0
    weight_decay: float = 1e-6  # of all parameters
    patience: int | None = None
    bidirectional: bool = True  # whether the sentence is read from both ends
    dropout: float = 0.6
    tied: bool = True
    keep: Keep = "last"  # titles go on getting better where perplexity does not
    look_at_words: bool = True  # whether the attention sees the words' vectors beside what was read
    input_feeding: bool = False  # whether what the head was given for a word goes in beside it
    batch: int = 512  # pairs

    def __post_init__(self) -> None:
        super().__post_init__()
        self._above_zero("batch")


# As the paper says it: read in one direction, no dropout, no clipping, a constant learning rate.
PRESETS: dict[str, dict[str, Any]] = {
    "best": {},
    "paper": {
        "bidirectional": False,
        "dropout": 0.0,
        "tied": False,
        "keep": "best",
        "look_at_words": False,
        "input_feeding": False,
        "schedule": "constant",
        "clip": None,
        "epochs": 15,
        "learning_rate": 0.001,
        "batch": 128,
    },
}

# Of the preset "best", by head.
_SMOOTHED: dict[str, Any] = {"label_smoothing": 0.1}
_TWO_LEVEL: dict[str, Any] = {**_SMOOTHED, "projection": False}
HEAD_OPTIONS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("full", "full-compiled"), _SMOOTHED),
    **dict.fromkeys(("self-organized", "random-clusters", "hsm-frequency", "hsm-similarity"), _TWO_LEVEL),
}

REORGANIZE_EVERY = 100  # updates, about an epoch


def from_preset(preset: str, clusters: bool = False, **given: Any) -> Settings:
    """A preset with what is given in its place; `clusters`: whether the head will be given any, which then stay."""
    if preset not in PRESETS:
        raise ValueError(f"there is no preset {preset!r}; there are: {', '.join(PRESETS)}")
    settings = Settings.from_dict({**PRESETS[preset], **given, "preset": preset})
    usual = (HEAD_OPTIONS if preset == "best" else AS_PRINTED).get(settings.head, {})
    if preset == "best" and settings.head == "self-organized":
        stay = clusters or "partition" in settings.head_options
        usual = {**usual, "reorganize_every": None if stay else REORGANIZE_EVERY}
    return replace(settings, head_options={**usual, **settings.head_options})
