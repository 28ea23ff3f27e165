"""Heads by name, so that one trainer can compare them; a head of one's own joins with `register`.

Shapes: D width, V words.
"""

import inspect
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from coterie.softmax import HeadOutput
from coterie_lab.heads import two_level
from coterie_lab.heads.adaptive import AdaptiveSoftmax
from coterie_lab.heads.cnn import SpelledSoftmax
from coterie_lab.heads.differentiated import DifferentiatedSoftmax
from coterie_lab.heads.full import ChunkedFullSoftmax, FullSoftmax
from coterie_lab.heads.huffman import HuffmanSoftmax
from coterie_lab.heads.importance import ImportanceSampling
from coterie_lab.heads.material import Material
from coterie_lab.heads.nce import NoiseContrastive


class Head(Protocol):
    """What every head answers; it is built from (in_features, n_classes, counts, **options)."""

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
        """One draw each: (..., D) → (...)."""
        ...


Builder = Callable[..., nn.Module]
HEADS: dict[str, Builder] = {
    "full": FullSoftmax,
    "full-chunked": ChunkedFullSoftmax,
    "self-organized": two_level.self_organized,
    "self-organized-paper": two_level.self_organized_paper,
    "random-clusters": two_level.random_clusters,
    "hsm-frequency": two_level.hsm_frequency,
    "hsm-similarity": two_level.hsm_similarity,
    "hsm-huffman": HuffmanSoftmax,
    "importance": ImportanceSampling,
    "nce": NoiseContrastive,
    "differentiated": DifferentiatedSoftmax,
    "cnn": SpelledSoftmax,
}


def register(name: str) -> Callable[[Builder], Builder]:
    """Gives a builder, a function or a class, a name that `build` knows.

    It is called with (in_features, n_classes, counts, **options); a parameter named as one of `Material`'s is given
    what is known of it.
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
    """A head; `counts` (V,). `material`: what else is known, for heads that need more than counts."""
    if name not in HEADS:
        raise ValueError(f"there is no head called {name!r}; there are: {', '.join(HEADS)}")
    builder = HEADS[name]
    asked = inspect.signature(builder).parameters
    known = {key: value for key, value in vars(material or Material()).items() if key in asked and value is not None}
    try:
        return builder(in_features, n_classes, counts, **{**known, **options})
    except torch.OutOfMemoryError:
        raise
    except (TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        why, *_ = str(error).splitlines() or [type(error).__name__]
        raise ValueError(f"the head {name!r} cannot be built with {options}: {why}") from error


@register("full-compiled")
def full_compiled(in_features: int, n_classes: int, counts: Tensor, **options: Any) -> FullSoftmax:
    """The full softmax through `torch.compile`."""
    head = FullSoftmax(in_features, n_classes, counts, **options)
    head.compile()
    return head


@register("adaptive")
def adaptive(in_features: int, n_classes: int, counts: Tensor, **options: Any) -> AdaptiveSoftmax:
    """torch's adaptive softmax."""
    return AdaptiveSoftmax(in_features, n_classes, **options)
