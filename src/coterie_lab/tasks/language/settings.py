"""The settings of a language model's run, and the presets they start from."""

from dataclasses import dataclass, replace
from typing import Any

from coterie_lab.options import option
from coterie_lab.training.settings import AS_PRINTED, ModelSettings


@dataclass(frozen=True, kw_only=True)
class Settings(ModelSettings):
    """The model, its head, the shape of a batch, and how to train."""

    layers: int = option(1, "layers of the LSTM", "model", least=1, most=100)
    dropout: float = 0.25
    sequences: int = option(128, "sequences of text read side by side", "data", least=1)
    length: int = option(20, "words of each sequence in a batch", "data", least=1)
    weight_decay: float = option(0.0, "weight decay of the LSTM's weights", "optimizer", least=0)
    projection_factor: float = option(
        1.0, "factor on the learning rate of the head's projections", "optimizer", above=0
    )
    row_accumulator: bool = option(True, "Adagrad: keep one sum for each row of the embedding", "optimizer")
    clip_embedding: bool = option(False, "clip the embedding's gradient with the others", "optimizer")


# The default of every field is what was measured best on text8. "paper" is what the paper prints: Adagrad from zero, no
# dropout, ReLU after the projections. (The perplexity it reports needs details of Grave et al.'s recipe that it does
# not list: dropout 0.25, an accumulator started at 1e-5, one sum per row of the embedding, a halved learning rate.)
PRESETS: dict[str, dict[str, Any]] = {
    "best": {},
    "paper": {
        "head": "self-organized-paper", "dropout": 0.0, "initial_range": None, "optimizer": "adagrad",
        "learning_rate": 0.1, "schedule": "constant", "weight_decay": 1e-6, "clip": 0.25, "clip_embedding": True,
        "accumulator": 0.0, "row_accumulator": False,
    },
}  # fmt: skip


# Of the preset "best" with the self-organized head. In the paper, words move every 1,000 updates to the end of the run.
REORGANIZE_EVERY, SETTLE = 250, 0.7


def from_preset(preset: str = "best", **given: Any) -> Settings:
    """The settings of a preset, with those in `given` replaced."""
    settings = Settings.from_presets(PRESETS, preset, given)
    if preset == "paper":
        return replace(settings, head_options={**AS_PRINTED.get(settings.head, {}), **settings.head_options})
    if settings.head != "self-organized":
        return settings
    said = "settle" in given or "reorganize_until" in settings.head_options
    options = {"reorganize_every": REORGANIZE_EVERY, **settings.head_options}
    return replace(settings, settle=settings.settle if said else SETTLE, head_options=options)
