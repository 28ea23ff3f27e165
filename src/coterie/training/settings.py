"""What every training run is told, whatever it trains."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self, get_args

Optimizer = Literal["adagrad", "adam", "adamw"]
Schedule = Literal["constant", "halving", "cosine", "linear"]
Precision = Literal["auto", "float32", "bfloat16"]
Device = Literal["auto", "cpu", "cuda"]


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
    checkpoint_every: float = 600.0  # seconds between checkpoints; after an epoch, a twentieth of it
    graph: bool = True  # on a GPU, replay the update as one CUDA graph

    def __post_init__(self) -> None:
        for name, choices in (
            ("optimizer", get_args(Optimizer)), ("schedule", get_args(Schedule)),
            ("precision", get_args(Precision)), ("device", get_args(Device)),
        ):  # fmt: skip
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}; got {getattr(self, name)!r}")
        for name in ("epochs", "log_every", "evaluate_every", "patience", "learning_rate", "clip"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ValueError(f"{name} must be above 0; got {value}")
        for name in ("warmup", "weight_decay", "accumulator", "checkpoint_every"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or more; got {getattr(self, name)}")

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
