"""How a hidden vector becomes what each level sees, and what the cluster vectors are to it.

Shapes: T tokens, D width, C clusters.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as modules

from coterie.clustering.prior import Prior
from coterie.loss.dispatch import Backend
from coterie.loss.levels import refuse_second_derivatives

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "tanh": torch.tanh, "gelu": F.gelu}

LARGE = 2**23  # numbers of a batch of hidden vectors


class Projected(nn.Module):
    """A layer of two levels that each see a hidden vector in their own way."""

    in_features: int
    n_clusters: int
    backend: Backend
    projection: nn.Linear | None
    activation: str | None
    weight: nn.Parameter  # (V, D)
    cluster_weight: nn.Parameter  # (C, D)
    cluster_bias: nn.Parameter | None  # (C,)
    prior: Prior | None  # beside it, what the counts of a cluster's words say

    def _project(self, hidden: Tensor) -> Tensor:
        """h_c and h_w side by side, (T, 2D); h itself, (T, D), without projections."""
        if self.projection is None:
            return hidden
        both: Tensor = self.projection(hidden)
        return both if self.activation is None else ACTIVATIONS[self.activation](both)

    def _levels(self, hidden: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """What each level sees of h (T, D), as `two_level` takes it, and the cluster vectors (C, D) to hold it against.

        A linear map of many tokens is a map of the few cluster vectors just as well: h_c · U_c = h · (U_c W_c).
        """
        projection = self.projection
        if projection is None:
            return hidden, None, self.cluster_weight
        linear = self.activation is None and plain(projection) and projection.bias is None
        if not (linear and self._many(hidden)):
            return self._project(hidden), None, self.cluster_weight
        if torch.compiler.is_compiling() or torch.is_autocast_enabled(hidden.device.type):
            return fold(hidden, projection.weight, self.cluster_weight)
        levels: tuple[Tensor, Tensor, Tensor] = _Folded.apply(  # type: ignore[no-untyped-call]
            hidden, projection.weight, self.cluster_weight
        )
        return levels

    def _many(self, hidden: Tensor) -> bool:
        """Whether there are so many tokens that it pays to map the clusters instead."""
        if self.backend == "reference":
            return False
        # On a GPU four small products and their launches take as long as the large one of a few thousand tokens.
        return hidden.numel() >= LARGE if hidden.is_cuda else hidden.shape[0] >= 2 * self.n_clusters

    def _cluster_shift(self) -> Tensor | None:
        """What the clusters' logits begin with, (C,): what was learned and what was counted."""
        if self.cluster_bias is None or self.prior is None:
            return self.cluster_bias
        return self.cluster_bias + self.prior.shift.to(self.cluster_bias.dtype)

    @torch.no_grad()
    def _cluster_vectors(self) -> tuple[Tensor, Tensor | None]:
        """The cluster vectors (C, D) and biases (C,) as they are held against what is remembered of h."""
        if self.projection is None or self.activation is not None:
            return self.cluster_weight, self._cluster_shift()
        # Asked of the map itself: somebody may have put another linear map in its place.
        rows = torch.eye(self.in_features + 1, self.in_features, device=self.weight.device, dtype=self.weight.dtype)
        to_cluster = self.projection(rows)[:, : self.in_features].to(torch.promote_types(rows.dtype, torch.float32))
        origin = to_cluster[-1]  # a row of zeros: where nothing goes
        weight = self.cluster_weight.to(origin.dtype)
        shift = self._cluster_shift()
        bias = weight @ origin + (0 if shift is None else shift)
        return weight @ (to_cluster[:-1] - origin).T, bias


def fold(hidden: Tensor, weight: Tensor, cluster_weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """h (T, D), both maps (2D, D), U_c (C, D) → what each level sees, (T, D) both, and U_c W_c (C, D)."""
    to_cluster, to_word = weight.chunk(2)
    return hidden, F.linear(hidden, to_word), cluster_weight @ to_cluster


class _Folded(torch.autograd.Function):
    """`fold`, whose gradients are sums and halves of one tensor: products write them there, and nothing is copied."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, cluster_weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(hidden, weight, cluster_weight)
        return fold(hidden, weight, cluster_weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        refuse_second_derivatives()
        hidden, weight, cluster_weight = ctx.saved_tensors
        grad_hidden, grad_word_hidden, grad_vectors = grads
        to_cluster, to_word = weight.chunk(2)
        of_hidden = of_weight = of_clusters = None
        if ctx.needs_input_grad[0]:
            of_hidden = grad_hidden.addmm_(grad_word_hidden, to_word)  # nobody else has it
        if ctx.needs_input_grad[1]:
            of_weight = torch.empty_like(weight)
            to_cluster_grad, to_word_grad = of_weight.chunk(2)
            torch.mm(cluster_weight.T, grad_vectors, out=to_cluster_grad)
            torch.mm(grad_word_hidden.T, hidden, out=to_word_grad)
        if ctx.needs_input_grad[2]:
            of_clusters = grad_vectors @ to_cluster.T
        return of_hidden, of_weight, of_clusters


def plain(module: nn.Module | None) -> bool:
    """Whether a linear map is nothing but its weight and bias, or none at all: whatever somebody hung on to it would be
    left out where it is not called."""
    return module is None or not (
        type(module) is not nn.Linear
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
        or modules._global_forward_hooks
        or modules._global_forward_pre_hooks
        or modules._global_backward_hooks
        or modules._global_backward_pre_hooks
    )
