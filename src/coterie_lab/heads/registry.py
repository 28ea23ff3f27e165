"""Heads by name, so that one trainer can compare them; add your own with `register`.

Shapes: D width, V words, N words of text.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.clustering.partition import Partition
from coterie.softmax import HeadOutput


class Head(Protocol):
    """The interface of every head."""

    graphable: bool  # whether a training step can be captured as a CUDA graph; `build` sets True if it is missing

    def __call__(self, hidden: Tensor, target: Tensor) -> HeadOutput:
        """log P(target) and the mean loss. `hidden` (..., D), `target` (...)."""
        ...

    def log_prob(self, hidden: Tensor) -> Tensor:
        """(..., D) → (..., V)."""
        ...

    def predict(self, hidden: Tensor) -> Tensor:
        """The most probable class: (..., D) → (...)."""
        ...

    def topk(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k most probable classes, best first: (..., D) → log P and classes, both (..., k)."""
        ...

    def sample(
        self,
        hidden: Tensor,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draws one class per hidden vector: (..., D) → (...)."""
        ...


@dataclass(frozen=True)
class Material:
    """What the trainer knows besides the counts. A builder gets those that it names as parameters."""

    vocabulary: Sequence[str] | None = None  # (V,) how the words are spelled
    text: NDArray[Any] | None = None  # (N,) the training text; empty for a saved head, which has learned from it
    partition: Partition | None = None  # the clusters that a saved head already has


Builder = TypeVar("Builder", bound=Callable[..., nn.Module])
HEADS: dict[str, Callable[..., nn.Module]] = {}


def register(name: str) -> Callable[[Builder], Builder]:
    """Registers a builder, which is a function or a class, under a name for `build`.

    It is called with (in_features, n_classes, counts, **options), and with the fields of `Material` that it names.

        @register("mine")
        class Mine(nn.Module):
            def __init__(self, in_features, n_classes, counts, vocabulary=None, depth=1): ...
    """

    def add(builder: Builder) -> Builder:
        if name in HEADS:
            raise ValueError(f"there is a head called {name!r} already")
        HEADS[name] = builder
        return builder

    return add


def build(
    name: str, in_features: int, n_classes: int, counts: Tensor, material: Material | None = None, **options: Any
) -> nn.Module:
    """Builds a head; `counts` (V,). `material`: what else is known. The option `partition` may be a file."""
    if name not in HEADS:
        raise ValueError(f"there is no head called {name!r}; there are: {', '.join(HEADS)}")
    builder, material = HEADS[name], material or Material()
    asked = inspect.signature(builder).parameters
    known = {key: value for key, value in vars(material).items() if key in asked and value is not None}
    if "partition" in known:  # which says who stands alone, too; a file it was once read from may be gone
        options = {key: value for key, value in options.items() if key not in ("partition", "own_words")}
    if isinstance(file := options.get("partition"), (str, Path)):
        options["partition"] = Partition.load(file, material.vocabulary)
    try:
        head = builder(in_features, n_classes, counts, **{**known, **options})
    except torch.OutOfMemoryError:
        raise
    except (TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        why, *_ = str(error).splitlines() or [type(error).__name__]
        if stranger := re.search(r"unexpected keyword argument '(\w+)'", why):
            raise ValueError(f"the head {name!r} has no option {stranger[1]!r}: leave it out") from error
        raise ValueError(f"the head {name!r} cannot be built with {options}: {why}") from error
    if not hasattr(head, "graphable"):
        head.graphable = True  # type: ignore[assignment]
    return head
