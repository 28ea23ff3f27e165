"""The size of the demonstration."""

from dataclasses import dataclass
from typing import Literal

from coterie_lab.options import check, option


@dataclass(frozen=True)
class Setting:
    """The text, the model and its training."""

    words: int = option(550_000, "words of generated text to learn from", "data", least=20_000)
    dev_words: int = option(50_000, "words of generated text to evaluate on", "data", least=2_000)
    width: int = option(128, "width of the embedding and of the LSTM", "model", least=1)
    sequences: int = option(64, "sequences of text read side by side", "data", least=1)
    length: int = option(20, "words of each sequence in a batch", "data", least=1)
    epochs: int = option(3, "passes over the generated text", "optimizer", least=1)
    learning_rate: float = option(1e-3, "of Adam", "optimizer", above=0)
    reorganize_every: int | Literal["auto"] = option(
        "auto", "updates between two reorganizations of the clusters, or as many as it takes", "head", least=1
    )
    seed: int = option(0, "seed of the text, the parameters and the first clusters", "run", least=0)

    def __post_init__(self) -> None:
        check(self)
