"""Everything a summarizer's run is told, and two ways to start from."""

from dataclasses import dataclass, field
from typing import Any

from coterie.training.settings import Optimizer, Schedule, TrainingSettings


@dataclass(frozen=True, kw_only=True)
class Settings(TrainingSettings):
    """The model, its head, the size of a batch, and how to train."""

    epochs: int = 15
    optimizer: Optimizer = "adam"
    learning_rate: float = 0.001
    schedule: Schedule = "linear"
    clip: float | None = 5.0
    weight_decay: float = 1e-6  # of all parameters
    patience: int | None = None
    embedding: int = 512
    hidden: int = 512
    bidirectional: bool = True  # whether the sentence is read from both ends
    dropout: float = 0.3  # on the embedding and on what the head is given
    tied: bool = True  # one matrix for the words that go in and those that come out
    initial_range: float | None = 0.1  # weights start uniform in ± this; None: as torch starts them
    batch: int = 128  # pairs
    head: str = "self-organized"
    head_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("embedding", "hidden", "batch"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0; got {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1; got {self.dropout}")
        if self.tied and self.embedding != self.hidden:
            raise ValueError(
                f"tied weights need an embedding as wide as the hidden layer; got {self.embedding} and {self.hidden}"
            )


# As the paper says it: read in one direction, no dropout, no clipping, a constant learning rate.
PRESETS: dict[str, dict[str, Any]] = {
    "best": {},
    "paper": {"bidirectional": False, "dropout": 0.0, "tied": False, "schedule": "constant", "clip": None},
}


def from_preset(preset: str, **given: Any) -> Settings:
    """A preset with what is given in its place."""
    if preset not in PRESETS:
        raise ValueError(f"there is no preset {preset!r}; there are: {', '.join(PRESETS)}")
    return Settings.from_dict({**PRESETS[preset], **given})
