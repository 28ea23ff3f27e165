"""Heads by name, so that one trainer can compare them; a head of one's own joins with `register`.

Shapes: D width, V words, C clusters.
"""

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from coterie.baselines.adaptive import AdaptiveSoftmax
from coterie.baselines.full import FullSoftmax
from coterie.head import HeadOutput, SelfOrganizedSoftmax
from coterie.partition import Partition


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
    "self-organized": SelfOrganizedSoftmax,
    "self-organized-paper": SelfOrganizedSoftmax.as_in_paper,
}


def register(name: str) -> Callable[[Builder], Builder]:
    """Gives a builder, a function or a class, a name that `build` knows."""

    def add(builder: Builder) -> Builder:
        if name in HEADS:
            raise ValueError(f"there is a head called {name!r} already")
        HEADS[name] = builder
        return builder

    return add


def build(name: str, in_features: int, n_classes: int, counts: Tensor, **options: Any) -> nn.Module:
    """A head; `counts` (V,)."""
    if name not in HEADS:
        raise ValueError(f"there is no head called {name!r}; there are: {', '.join(HEADS)}")
    try:
        return HEADS[name](in_features, n_classes, counts, **options)
    except TypeError as error:
        raise ValueError(f"the head {name!r} cannot be built with {options}: {error}") from error


@register("full")
def full(in_features: int, n_classes: int, counts: Tensor, **options: Any) -> FullSoftmax:
    """All V logits of every token."""
    return FullSoftmax(in_features, n_classes, **options)


@register("full-compiled")
def full_compiled(in_features: int, n_classes: int, counts: Tensor, **options: Any) -> FullSoftmax:
    """The same through `torch.compile`."""
    head = FullSoftmax(in_features, n_classes, **options)
    head.compile()
    return head


@register("adaptive")
def adaptive(in_features: int, n_classes: int, counts: Tensor, **options: Any) -> AdaptiveSoftmax:
    """torch's adaptive softmax."""
    return AdaptiveSoftmax(in_features, n_classes, **options)


@register("random-clusters")
def random_clusters(in_features: int, n_classes: int, counts: Tensor, **options: Any) -> SelfOrganizedSoftmax:
    """A two-level softmax whose clusters stay what chance made them."""
    return SelfOrganizedSoftmax(in_features, n_classes, counts, **{**options, "reorganize_every": None})


@register("hsm-frequency")
def hsm_frequency(in_features: int, n_classes: int, counts: Tensor, **options: Any) -> SelfOrganizedSoftmax:
    """A two-level softmax over fixed bins of words of like frequency, each with the same share of the text."""
    n_clusters = options.pop("n_clusters", None) or math.isqrt(n_classes - 1) + 1
    fixed = {"partition": frequency_bins(counts, n_clusters), "reorganize_every": None}
    return SelfOrganizedSoftmax(in_features, n_classes, counts, **{**options, **fixed})


def frequency_bins(counts: Tensor, n_clusters: int) -> Partition:
    """Words from frequent to rare, cut into C bins of equal mass; `counts` (V,). A very frequent word fills several."""
    order = counts.argsort(descending=True, stable=True)
    mass = counts[order].clamp(min=1).double().cumsum(0)
    before = torch.cat((mass.new_zeros(1), mass[:-1]))
    wanted = (before / mass[-1] * n_clusters).long().clamp(max=n_clusters - 1)  # (V,) in order
    cluster_of = torch.empty_like(order)
    cluster_of[order] = wanted
    return Partition(cluster_of, n_clusters)
