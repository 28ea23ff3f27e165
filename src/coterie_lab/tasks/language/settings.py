"""The settings of a language model's run, and the presets they start from."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from coterie_lab.options import option
from coterie_lab.training.settings import AS_PRINTED, ModelSettings

Kind = Literal["lstm", "transformer"]
Positions = Literal["learned", "rotary"]


@dataclass(frozen=True, kw_only=True)
class Settings(ModelSettings):
    """The model, its head, the shape of a batch, and how to train."""

    model: Kind = option("lstm", "what reads the words; transformer: with defaults of its own, nanoGPT's", "model")
    layers: int = option(1, "layers of the model", "model", least=1, most=100)
    attention_heads: int = option(8, "of a transformer: attention heads of a layer", "model", least=1, most=1024)
    positions: Positions = option("learned", "how a transformer knows the order of words", "model")
    compile: bool = option(False, "on a GPU, run a transformer's layers through torch.compile", "run")
    dropout: float = 0.25
    sequences: int = option(128, "sequences of text in a batch", "data", least=1)
    length: int = option(20, "words of each sequence; a transformer sees no more before a word", "data", least=1)
    weight_decay: float = option(
        0.0, "weight decay of the LSTM's weights, or of all matrices of a transformer", "optimizer", least=0
    )
    projection_factor: float = option(
        1.0, "factor on the learning rate of the head's projections", "optimizer", above=0
    )
    row_accumulator: bool = option(True, "LSTM with Adagrad: keep one sum for each row of the embedding", "optimizer")
    clip_embedding: bool = option(False, "LSTM: clip the embedding's gradient with the others", "optimizer")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model != "transformer":
            return
        parts = self.attention_heads * (2 if self.positions == "rotary" else 1)
        if self.hidden % parts:
            raise ValueError(
                f"hidden must be a multiple of {parts} for {self.attention_heads} attention_heads with "
                f"{self.positions} positions; got {self.hidden}"
            )
        if self.embedding != self.hidden:
            raise ValueError(f"a transformer has one width; got hidden {self.hidden} and embedding {self.embedding}")


# The options that only one kind of model has.
ONLY: dict[str, Kind] = {
    **dict.fromkeys(("embedding", "initial_range", "row_accumulator", "clip_embedding"), "lstm"),
    **dict.fromkeys(("attention_heads", "positions", "compile"), "transformer"),
}

# The recipe of a Transformer is nanoGPT's.
TRANSFORMER: dict[str, Any] = {
    "layers": 6, "dropout": 0.1, "initial_range": None, "sequences": 64, "length": 256, "optimizer": "adamw",
    "learning_rate": 1e-3, "schedule": "cosine", "warmup": 100, "weight_decay": 0.1, "clip": 1.0,
}  # fmt: skip
# These heads have no vector of the embedding's width for every word.
UNTIED = ("adaptive", "cnn", "differentiated", "hsm-huffman")


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


def from_preset(preset: str = "best", model: Kind = "lstm", **given: Any) -> Settings:
    """The settings of a preset for a kind of model, with those in `given` replaced."""
    if stranger := next((name for name in given if ONLY.get(name, model) != model), None):
        raise ValueError(f"{stranger} is an option of --model {ONLY[stranger]}; leave it out for {model}")
    if model == "transformer":
        return _transformer(preset, given)
    settings = Settings.from_presets(PRESETS, preset, {"model": model, **given})
    if preset == "paper":
        return replace(settings, head_options={**AS_PRINTED.get(settings.head, {}), **settings.head_options})
    return settings


def _transformer(preset: str, given: dict[str, Any]) -> Settings:
    """The settings of a Transformer; its head, unless told otherwise, has its own defaults."""
    if preset == "paper":
        raise ValueError("the preset 'paper' is of an LSTM, which the paper trains: leave it out for a transformer")
    usual = {**TRANSFORMER, "model": "transformer", "tied": given.get("head") not in UNTIED}
    if "hidden" in given:
        usual["embedding"] = given["hidden"]
    return Settings.from_presets(PRESETS, preset, {**usual, **given})
