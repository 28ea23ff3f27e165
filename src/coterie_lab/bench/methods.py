"""The methods to compare: every head as a function of hidden vectors and targets.

Shapes: T tokens, D width, V words.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.checks import default_clusters
from coterie.clustering.partition import Partition
from coterie.softmax import SelfOrganizedSoftmax
from coterie_lab.bench.names import GRAPH, NAMES
from coterie_lab.bench.shapes import Shape, zipf_counts, zipf_text
from coterie_lab.heads import HEADS, Material, registry

Loss = Callable[[Tensor, Tensor], Tensor]  # (T, D), (T,) → the loss


@dataclass
class Method:
    """A head ready to run."""

    module: nn.Module
    loss: Loss
    topk: Callable[[Tensor, int], object] | None = None
    graph: bool = False  # timed as a CUDA graph


def build(name: str, shape: Shape, device: torch.device, dtype: torch.dtype) -> Method | None:
    """One of `NAMES`, or of the registry's heads, or None where this machine lacks what it needs."""
    width, n_words = shape.width, shape.words
    plain, graph = name.removesuffix(GRAPH), name.endswith(GRAPH)
    if plain == "self-organized":
        head = organized(n_words, width, device, dtype)
        return Method(head, lambda h, t: head(h, t).loss, head.topk, graph)
    if name == "adaptive":
        cutoffs = [cut for cut in (2_000, 10_000, 50_000, 200_000) if cut < n_words / 2] or [n_words // 4]
        adaptive = nn.AdaptiveLogSoftmaxWithLoss(width, n_words, cutoffs, device=device, dtype=dtype)
        return Method(adaptive, lambda h, t: adaptive(h, t).loss, lambda h, k: adaptive.log_prob(h).topk(k))
    if name not in FULL:
        module = registered(plain, n_words, width).to(device, dtype)
        return Method(module, lambda h, t: module(h, t).loss, module.topk, graph)
    # The packaged CCE takes no bias.
    linear = nn.Linear(width, n_words, bias=name != "cce", device=device, dtype=dtype)
    dense = (lambda h, k: linear(h).float().log_softmax(-1).topk(k)) if name == "full" else None
    try:
        return Method(linear, FULL[name](linear), dense)
    except (ImportError, AttributeError):
        return None


def organized(
    n_words: int, width: int, device: torch.device | None = None, dtype: torch.dtype | None = None, **options: Any
) -> SelfOrganizedSoftmax:
    """The layer after an E-step with random preferences: clusters as uneven in size and mass as real ones."""
    head = SelfOrganizedSoftmax(width, n_words, zipf_counts(n_words), device=device, dtype=dtype, **options)
    prefer_at_random(head)
    head.reorganize()
    return head


def prefer_at_random(head: SelfOrganizedSoftmax) -> None:
    """Fills the statistic as if every word in a cluster had been seen, with random preferences."""
    assert head.statistic is not None
    head.statistic.total.normal_()
    head.statistic.weight.fill_(1.0)
    head.statistic.forget(head.partition.own)


def registered(name: str, n_words: int, width: int) -> Any:
    """A head from the registry, built from invented words and text, which do not change the cost of a step."""
    scattered = Partition(torch.arange(n_words) % default_clusters(n_words), default_clusters(n_words))
    # Bins by frequency: clustering similar words would take longer than timing the head.
    given = scattered if name == "hsm-similarity" else None
    material = Material([f"word{number}" for number in range(n_words)], zipf_text(n_words, 1_000_000).numpy(), given)
    return registry.build(name, width, n_words, zipf_counts(n_words), material)


def _eager(linear: nn.Linear) -> Loss:
    return lambda h, t: F.cross_entropy(linear(h).float(), t)


def _compiled(linear: nn.Linear) -> Loss:
    compiled: Loss = torch.compile(_eager(linear))
    return compiled


def _chunked(linear: nn.Linear) -> Loss:
    chunked, options = F.linear_cross_entropy, nn.LinearCrossEntropyOptions()
    return lambda h, t: chunked(h, linear.weight, t, linear_bias=linear.bias, options=options)


def _cce(linear: nn.Linear) -> Loss:
    from cut_cross_entropy import linear_cross_entropy

    return lambda h, t: linear_cross_entropy(h, linear.weight, t)


def _liger(linear: nn.Linear) -> Loss:
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    return lambda h, t: liger_fused_linear_cross_entropy(h, linear.weight, t, bias=linear.bias)


# The full softmax's loss in different implementations.
FULL: dict[str, Callable[[nn.Linear], Loss]] = {
    "full": _eager, "full-compiled": _compiled, "full-chunked": _chunked, "cce": _cce, "liger": _liger,
}  # fmt: skip


def check_name(name: str) -> None:
    """Raises for a head that `build` does not know."""
    if name not in NAMES and name.removesuffix(GRAPH) not in HEADS:
        raise ValueError(
            f"there is no head called {name!r}; there are: {', '.join(dict.fromkeys((*NAMES, *HEADS)))}, each of "
            f"`coterie lm train` also with {GRAPH} behind its name"
        )
