"""The settings that every training run has, whatever it trains."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

from coterie_lab.options import check, option

Optimizer = Literal["adagrad", "adam", "adamw"]
Schedule = Literal["constant", "halving", "cosine", "linear"]
Precision = Literal["auto", "float32", "bfloat16"]
Device = Literal["auto", "cpu", "cuda"]
Keep = Literal["best", "last"]

WIDEST = 1 << 20  # of an embedding or a hidden layer


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How to train; plain data, which is stored in the run's folder."""

    epochs: int = option(5, "passes over the training data", "optimizer", least=1)
    updates: int | None = option(
        None, "stop after this many updates, in place of epochs", "optimizer", unset="as --epochs says", least=1
    )
    optimizer: Optimizer = option("adam", "how gradients become updates", "optimizer")
    learning_rate: float = option(0.002, "the learning rate at its highest", "optimizer", above=0)
    schedule: Schedule = option("linear", "how the learning rate falls", "optimizer")
    warmup: int = option(0, "updates over which the learning rate rises from zero", "optimizer", least=0)
    clip: float | None = option(
        1.0, "largest norm of the gradient; 0: no limit", "optimizer", unset="no limit", off=0, above=0, infinite=True
    )
    weight_decay: float = option(0.0, "weight decay of all parameters", "optimizer", least=0)
    accumulator: float = option(1e-5, "initial value of Adagrad's sums of squared gradients", "optimizer", least=0)
    precision: Precision = option("auto", "precision of products; auto is bfloat16 on a GPU", "run")
    device: Device = option("auto", "where to compute", "run")
    seed: int = option(0, "seed of the parameters, the batches and the dropout", "run", least=0, most=2**63 - 1)
    log_every: int = option(50, "updates between lines of the log", "run", least=1)
    evaluate_every: int | None = option(
        None, "also evaluate every so many updates", "run", unset="after each epoch", least=1
    )
    evaluate_at: str = option("", "look at the model after these updates too, with commas between", "run")
    evaluate_moves: bool = option(False, "look at the model before and after each reorganization too", "run")
    patience: int | None = option(
        None, "stop after this many evaluations without a better one", "run", unset="never", least=1
    )
    keep: Keep = option("best", "which of the evaluated models to keep", "run")
    checkpoint_every: float = option(
        600.0, "seconds between checkpoints; at the end of an epoch, a twentieth of it", "run", least=0, infinite=True
    )
    graph: bool = option(True, "on a GPU, run the update as one CUDA graph", "run")

    def __post_init__(self) -> None:
        check(self)
        if not all(update.strip().isdigit() for update in self.evaluate_at.split(",") if self.evaluate_at):
            raise ValueError(f"evaluate_at must be whole numbers with commas between; got {self.evaluate_at!r}")

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Self:
        """The settings from `to_dict`'s result; raises for a field that does not exist."""
        known = {field.name for field in fields(cls)}
        if stranger := next((name for name in given if name not in known), None):
            raise ValueError(f"there is no setting called {stranger!r}; there are: {', '.join(sorted(known))}")
        return cls(**given)


# Arguments that the caller of a head sets, and that are therefore not options.
GIVEN = ("name", "in_features", "n_classes", "counts", "material", "device", "dtype", "reduction", "ignore_index")

# Head options of the preset "paper": there no head initialises biases from the counts, no word stands alone, and words
# move every 1,000 updates.
_PRINTED_BIASES: dict[str, Any] = {"biases": "random"}
_NO_BIASES: dict[str, Any] = {"bias": False}
AS_PRINTED = {
    **dict.fromkeys(("full", "full-compiled", "full-chunked", "importance", "nce"), _PRINTED_BIASES),
    **dict.fromkeys(("hsm-frequency", "hsm-similarity"), _NO_BIASES),
    "random-clusters": {**_NO_BIASES, "own_words": 0},
    "self-organized": {**_NO_BIASES, "own_words": 0, "reorganize_every": 1000},
}


@dataclass(frozen=True, kw_only=True)
class ModelSettings(TrainingSettings):
    """The settings shared by all models that read words and write words."""

    preset: str = option("best", "where settings that are not given come from: best, or paper, as printed there")
    embedding: int = option(512, "width of the word embedding", "model", least=1, most=WIDEST)
    hidden: int = option(512, "width of the model's inner vectors", "model", least=1, most=WIDEST)
    dropout: float = option(0.0, "of the embedding and of the head's input", "model", least=0, below=1)
    tied: bool = option(False, "use one matrix for input and output words", "model", flags="--tied/--untied")
    initial_range: float | None = option(
        0.1,
        "draw initial weights uniformly from minus this to this",
        "model",
        unset="torch's initialization",
        least=0,
        most=1e6,
    )
    head: str = option(
        "self-organized", "the softmax: self-organized, full, full-compiled, adaptive, importance, nce, cnn, …", "head"
    )
    head_options: dict[str, Any] = option({}, "an option of the head; may be repeated", "head", flags="--head-option")
    settle: float = option(1.0, "share of the run after which words keep their clusters", "head", least=0, most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if taken := [name for name in self.head_options if name in GIVEN]:
            raise ValueError(f"{taken[0]} is not an option of the head: the model and its training set it")
        if self.settle < 1 and "reorganize_until" in self.head_options:
            raise ValueError("settle and the head's reorganize_until say the same thing: give one of them")
        if self.tied and self.embedding != self.hidden:
            raise ValueError(
                f"tied weights need an embedding as wide as the hidden layer; got {self.embedding} and {self.hidden}"
            )

    @classmethod
    def from_presets(cls, presets: dict[str, dict[str, Any]], preset: str, given: dict[str, Any]) -> Self:
        """The settings of a preset, with those in `given` replaced."""
        if preset not in presets:
            raise ValueError(f"there is no preset {preset!r}; there are: {', '.join(presets)}")
        return cls.from_dict({**presets[preset], **given, "preset": preset})
