"""What every training run is told, whatever it trains."""

import math
from dataclasses import asdict, dataclass, field, fields
from types import NoneType, UnionType
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

Optimizer = Literal["adagrad", "adam", "adamw"]
Schedule = Literal["constant", "halving", "cosine", "linear"]
Precision = Literal["auto", "float32", "bfloat16"]
Device = Literal["auto", "cpu", "cuda"]
Keep = Literal["best", "last"]


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How to train: plain data, written into the run's folder and read back from it."""

    epochs: int = 5
    optimizer: Optimizer = "adam"
    learning_rate: float = 0.002
    schedule: Schedule = "linear"  # to nothing at the end; halving: after each epoch that ends in the second half
    warmup: int = 0  # updates over which the learning rate rises from zero
    clip: float | None = 1.0  # the most the norm of the gradient may be
    weight_decay: float = 0.0
    accumulator: float = 1e-5  # where Adagrad's sums of squared gradients start
    precision: Precision = "auto"  # auto: bfloat16 on a GPU
    device: Device = "auto"
    seed: int = 0
    log_every: int = 50  # updates between lines of the log
    evaluate_every: int | None = None  # updates between evaluations, beside those after each epoch
    patience: int | None = None  # stop after this many evaluations without a better one
    keep: Keep = "best"  # which model a run leaves to be used, of those evaluated
    checkpoint_every: float = 600.0  # seconds between checkpoints; after an epoch, a twentieth of it
    graph: bool = True  # on a GPU, replay the update as one CUDA graph

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            value = getattr(self, name)
            # As good as no limit and never.
            unlimited = value == math.inf and name in ("clip", "checkpoint_every")
            if (wanted := _wanted(kind, value)) is not None and not unlimited:
                raise ValueError(f"{name} must be {wanted}; got {getattr(self, name)!r}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be from 0 to 2^63 - 1; got {self.seed}")
        for name, choices in (
            ("optimizer", get_args(Optimizer)), ("schedule", get_args(Schedule)),
            ("precision", get_args(Precision)), ("device", get_args(Device)), ("keep", get_args(Keep)),
        ):  # fmt: skip
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}; got {getattr(self, name)!r}")
        self._above_zero("epochs", "log_every", "evaluate_every", "patience", "learning_rate", "clip")
        for name in ("warmup", "weight_decay", "accumulator", "checkpoint_every"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or more; got {getattr(self, name)}")

    def _at_most(self, **limits: float) -> None:
        for name, most in limits.items():
            if (value := getattr(self, name)) is not None and value > most:
                raise ValueError(f"{name} must be {most:,} at most; got {value}")

    def _above_zero(self, *names: str) -> None:
        for name in names:
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ValueError(f"{name} must be above 0; got {value}")

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Self:
        """From `to_dict`'s result; a field that does not exist is named."""
        known = {field.name for field in fields(cls)}
        if stranger := next((name for name in given if name not in known), None):
            raise ValueError(f"there is no setting called {stranger!r}; there are: {', '.join(sorted(known))}")
        return cls(**given)


# No options of a head: whoever builds it says these.
GIVEN = ("name", "in_features", "n_classes", "counts", "material", "device", "dtype", "reduction", "ignore_index")

# What a preset that follows the paper to the letter gives these heads: there, nobody starts from the counts.
_PRINTED_BIASES: dict[str, Any] = {"biases": "random"}
_NO_BIASES: dict[str, Any] = {"bias": False}
AS_PRINTED = {
    **dict.fromkeys(("full", "full-compiled", "full-chunked", "importance", "nce"), _PRINTED_BIASES),
    **dict.fromkeys(("self-organized", "random-clusters", "hsm-frequency", "hsm-similarity"), _NO_BIASES),
}

WIDEST = 1 << 20  # of an embedding or a hidden layer

_KINDS: dict[type, tuple[type | tuple[type, ...], str]] = {
    bool: (bool, "true or false"),
    int: (int, "a whole number"),
    float: ((int, float), "a finite number"),
    dict: (dict, "names with values"),
}


def _wanted(kind: Any, value: Any) -> str | None:
    """What a value should have been, in words; None if it is of its kind. Choices are checked elsewhere."""
    parts = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    known = [_KINDS[part] for found in parts if (part := get_origin(found) or found) in _KINDS]
    if not known or (value is None and NoneType in parts):
        return None
    (types, said), *_ = known
    fits = isinstance(value, types) and (types is bool or not isinstance(value, bool))
    return None if fits and not (isinstance(value, float) and not math.isfinite(value)) else said


@dataclass(frozen=True, kw_only=True)
class ModelSettings(TrainingSettings):
    """What every model with words in and words out is told beside."""

    embedding: int = 512
    hidden: int = 512
    dropout: float = 0.0  # on the embedding and on what the head is given
    tied: bool = False  # one matrix for the words that go in and those that come out
    initial_range: float | None = 0.1  # weights start uniform in ± this; None: as torch starts them
    head: str = "self-organized"
    head_options: dict[str, Any] = field(default_factory=dict)
    settle: float = 1.0  # share of the run after which words stay in their clusters
    preset: str = "best"  # where what was not said came from

    def __post_init__(self) -> None:
        super().__post_init__()
        self._above_zero("embedding", "hidden")
        self._at_most(embedding=WIDEST, hidden=WIDEST, initial_range=1e6)
        if self.initial_range is not None and self.initial_range < 0:
            raise ValueError(f"initial_range must be 0 or more; got {self.initial_range}")
        if taken := [name for name in self.head_options if name in GIVEN]:
            raise ValueError(f"the head's {taken[0]} is not for choosing: it comes with the model and its training")
        if not 0 <= self.settle <= 1:
            raise ValueError(f"settle must be from 0 to 1; got {self.settle}")
        if self.settle < 1 and "reorganize_until" in self.head_options:
            raise ValueError("settle and the head's reorganize_until say the same thing: give one of them")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1; got {self.dropout}")
        if self.tied and self.embedding != self.hidden:
            raise ValueError(
                f"tied weights need an embedding as wide as the hidden layer; got {self.embedding} and {self.hidden}"
            )
