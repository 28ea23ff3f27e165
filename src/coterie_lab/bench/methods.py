"""What is compared: every head as one function of hidden vectors and targets.

Shapes: T tokens, D width, V words.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.checks import default_clusters
from coterie.clustering.partition import Partition
from coterie.replay import OFTEN
from coterie.softmax import SelfOrganizedSoftmax
from coterie_lab.heads import HEADS, Material, registry

Loss = Callable[[Tensor, Tensor], Tensor]  # (T, D), (T,) → the loss


@dataclass
class Method:
    """A head ready to run."""

    name: str
    module: nn.Module
    loss: Loss
    topk: Callable[[Tensor, int], object] | None = None
    graph: bool = False  # timed as a CUDA graph
    warm_up: int = 1  # calls before any is timed


def zipf_counts(n_words: int) -> Tensor:
    """How often each of V words occurs in a large text, by Zipf's law: (V,)."""
    return (1e9 / torch.arange(1, n_words + 1, dtype=torch.float64)).long()


def organized(n_words: int, width: int, device: torch.device, dtype: torch.dtype) -> SelfOrganizedSoftmax:
    """The layer after an E-step with made-up preferences: clusters as uneven in size and mass as real ones."""
    head = SelfOrganizedSoftmax(width, n_words, zipf_counts(n_words), device=device, dtype=dtype)
    assert head.statistic is not None
    head.statistic.total.normal_()
    head.statistic.weight.fill_(1.0)
    head.reorganize()
    return head


def build(name: str, n_words: int, width: int, device: torch.device, dtype: torch.dtype) -> Method | None:
    """One of `NAMES`, or of the registry's heads, or None where it is not to be had here."""
    if name.removesuffix(GRAPH) == "self-organized":
        head = organized(n_words, width, device, dtype)
        called = Method(name, head, lambda h, t: head(h, t).loss, head.topk, graph=name.endswith(GRAPH))
        # What it is asked often it has recorded by then, as in use.
        return replace(called, warm_up=OFTEN + 1 if device.type == "cuda" else 1)
    if name == "adaptive":
        cutoffs = [cut for cut in (2_000, 10_000, 50_000, 200_000) if cut < n_words / 2] or [n_words // 4]
        adaptive = nn.AdaptiveLogSoftmaxWithLoss(width, n_words, cutoffs, device=device, dtype=dtype)
        return Method(name, adaptive, lambda h, t: adaptive(h, t).loss, lambda h, k: adaptive.log_prob(h).topk(k))
    if name not in NAMES:
        return _registered(name, n_words, width, device, dtype)
    # The packaged CCE takes no bias.
    linear = nn.Linear(width, n_words, bias=name != "cce", device=device, dtype=dtype)
    loss = _full_loss(name, linear)
    dense = (lambda h, k: linear(h).float().log_softmax(-1).topk(k)) if name == "full" else None
    return None if loss is None else Method(name, linear, loss, dense)


GRAPH = "-graph"  # behind a name: timed as a CUDA graph
NAMES = (
    "self-organized", "self-organized-graph", "full", "full-compiled", "full-chunked", "adaptive", "cce", "liger",
)  # fmt: skip


def check_name(name: str) -> None:
    """Raises for a head that `build` does not know."""
    if name not in NAMES and name.removesuffix(GRAPH) not in HEADS:
        raise ValueError(
            f"there is no head called {name!r}; there are: {', '.join(dict.fromkeys((*NAMES, *HEADS)))}, each of "
            f"`coterie lm train` also with {GRAPH} behind its name"
        )


def _registered(name: str, n_words: int, width: int, device: torch.device, dtype: torch.dtype) -> Method:
    """A head from the registry, built from made-up words and text: neither changes what a step costs."""
    counts = zipf_counts(n_words)
    law = counts.double().cumsum(0)
    text = torch.searchsorted(law, torch.rand(1_000_000, dtype=torch.float64) * law[-1]).clamp(max=n_words - 1)
    scattered = Partition(torch.arange(n_words) % default_clusters(n_words), default_clusters(n_words))
    # Bins are made from the counts; looking for similar words would take longer than timing them.
    given = scattered if name.startswith("hsm-similarity") else None
    material = Material([f"word{number}" for number in range(n_words)], text.numpy(), given)
    module: Any = registry.build(name.removesuffix(GRAPH), width, n_words, counts, material).to(device, dtype)
    return Method(name, module, lambda h, t: module(h, t).loss, module.topk, graph=name.endswith(GRAPH))


def _full_loss(name: str, linear: nn.Linear) -> Loss | None:
    """The full softmax's loss, computed one way or another."""

    def eager(hidden: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(linear(hidden).float(), target)

    if name == "full":
        return eager
    if name == "full-compiled":
        compiled: Loss = torch.compile(eager)
        return compiled
    if name == "full-chunked":
        chunked = getattr(F, "linear_cross_entropy", None)
        if chunked is None:
            return None
        options = nn.LinearCrossEntropyOptions()
        return lambda h, t: chunked(h, linear.weight, t, linear_bias=linear.bias, options=options)
    try:
        if name == "cce":
            from cut_cross_entropy import linear_cross_entropy

            return lambda h, t: linear_cross_entropy(h, linear.weight, t)
        from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

        return lambda h, t: liger_fused_linear_cross_entropy(h, linear.weight, t, bias=linear.bias)
    except ImportError:
        return None
