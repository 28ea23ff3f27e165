"""Projections, the cluster level, and the types that all backends share.

Shapes: T tokens, D width, V words, C clusters.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.clustering.partition import Partition

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "tanh": torch.tanh, "gelu": F.gelu}


class Vectors(NamedTuple):
    """The parameters of a layer, and its prior."""

    projection: Tensor | None  # (2D, D) maps h to h_c and to h_w; None: both are h
    activation: str | None  # applied after the projection
    cluster_weight: Tensor  # (C, D)
    cluster_bias: Tensor | None  # (C,)
    prior: Tensor | None  # (C,) float32, added to the bias: see `Prior`
    weight: Tensor  # (V, D)
    bias: Tensor | None  # (V,)

    def cluster_shift(self) -> Tensor | None:
        """The total bias of the clusters, (C,): the learned bias plus the prior."""
        if self.cluster_bias is None or self.prior is None:
            return self.cluster_bias
        return self.cluster_bias + self.prior.to(self.cluster_bias.dtype)


class LogProbs(NamedTuple):
    """log-probabilities at both levels, each (T,); 0 for an ignored token."""

    cluster: Tensor  # log P(c|h) of the target's cluster
    word: Tensor  # log P(w|c, h) of the target
    mean_cluster: Tensor  # the mean of log P(c|h) over the clusters that have words
    mean_word: Tensor  # the mean of log P(w|c, h) over the words of the target's cluster


# -- projections --------------------------------------------------------------------------------------------------


def project(hidden: Tensor, vectors: Vectors) -> tuple[Tensor, Tensor]:
    """h_c and h_w, the inputs of the two levels: (T, D) → (T, D) both."""
    if vectors.projection is None:
        return hidden, hidden
    # split, not two slices: in the backward each slice would make a gradient of full size, and autograd add the two.
    cluster_hidden, word_hidden = side_by_side(hidden, vectors).split(hidden.shape[1], 1)
    return cluster_hidden, word_hidden


def side_by_side(hidden: Tensor, vectors: Vectors) -> Tensor:
    """h_c and h_w in one tensor, (T, D) → (T, 2D); without projection h itself, (T, D)."""
    if vectors.projection is None:
        return hidden
    both = F.linear(hidden, vectors.projection)
    return both if vectors.activation is None else ACTIVATIONS[vectors.activation](both)


def project_few(hidden: Tensor, vectors: Vectors) -> tuple[Tensor, Tensor, Tensor]:
    """h_c, h_w (T, D) and cluster vectors (C, D); or, if it is less work, h in place of h_c and `folded` vectors."""
    if (
        vectors.projection is None
        or vectors.activation is not None
        or hidden.shape[0] < 2 * len(vectors.cluster_weight)
    ):
        return *project(hidden, vectors), vectors.cluster_weight
    return folded(hidden, vectors.projection, vectors.cluster_weight)


def folded(hidden: Tensor, projection: Tensor, cluster_weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """h, h_w (T, D) and U_c W_c (C, D): as h_c · U_c = h · (U_c W_c), it projects clusters instead of tokens."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(hidden.device.type):
        return _fold(hidden, projection, cluster_weight)
    levels: tuple[Tensor, Tensor, Tensor] = _Folded.apply(  # type: ignore[no-untyped-call]
        hidden, projection, cluster_weight
    )
    return levels


def _fold(hidden: Tensor, projection: Tensor, cluster_weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    to_cluster, to_word = projection.chunk(2)
    return hidden, F.linear(hidden, to_word), cluster_weight @ to_cluster


class _Folded(torch.autograd.Function):
    """`_fold` with a backward whose products write to their place in the gradients; autograd would copy them there."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, projection: Tensor, cluster_weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(hidden, projection, cluster_weight)
        return _fold(hidden, projection, cluster_weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        refuse_second_derivatives()
        hidden, projection, cluster_weight = ctx.saved_tensors
        grad_hidden, grad_word_hidden, grad_vectors = grads
        to_cluster, to_word = projection.chunk(2)
        of_hidden = of_projection = of_clusters = None
        if ctx.needs_input_grad[0]:
            of_hidden = grad_hidden.addmm_(grad_word_hidden, to_word)  # in-place: no one else uses this gradient
        if ctx.needs_input_grad[1]:
            of_projection = torch.empty_like(projection)
            to_cluster_grad, to_word_grad = of_projection.chunk(2)
            torch.mm(cluster_weight.T, grad_vectors, out=to_cluster_grad)
            torch.mm(grad_word_hidden.T, hidden, out=to_word_grad)
        if ctx.needs_input_grad[2]:
            of_clusters = grad_vectors @ to_cluster.T
        return of_hidden, of_projection, of_clusters


@torch.no_grad()
def cluster_vectors(vectors: Vectors) -> tuple[Tensor, Tensor | None]:
    """The cluster vectors (C, D) and biases (C,) that go with the hidden vectors that the statistic averages."""
    shift = vectors.cluster_shift()
    if vectors.projection is None or vectors.activation is not None:
        return vectors.cluster_weight, shift
    to_cluster = vectors.projection[: vectors.cluster_weight.shape[1]]
    exact = torch.promote_types(to_cluster.dtype, torch.float32)
    return vectors.cluster_weight.to(exact) @ to_cluster.to(exact), None if shift is None else shift.to(exact)


# -- the cluster level --------------------------------------------------------------------------------------------


def cluster_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The clusters' logits: (T, D), (C, D), (C,) → (T, C), in float32 at least."""
    logits = F.linear(hidden, weight, bias)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def cluster_log_softmax(logits: Tensor, sizes: Tensor) -> Tensor:
    """log P(c|h), -inf for empty clusters: (T, C) → (T, C). `sizes` (C,): the number of words of each.

    An empty cluster must have probability 0, or the words' probabilities would not sum to one.
    """
    return logits.masked_fill(sizes == 0, -torch.inf).log_softmax(-1)


def cluster_level(logits: Tensor, target: Tensor, partition: Partition) -> tuple[Tensor, Tensor]:
    """log P(c|h) of the target's cluster and its mean over the filled clusters: (T, C), (T,) → (T,), (T,)."""
    sizes = partition.sizes
    log_clusters = cluster_log_softmax(logits, sizes)
    cluster = partition.cluster_of[target.clamp(min=0)]
    filled = sizes > 0
    mean = torch.where(filled, log_clusters, 0.0).sum(1) / filled.sum()
    own = log_clusters.gather(1, cluster[:, None]).squeeze(1)
    return torch.where(target >= 0, own, 0.0), torch.where(target >= 0, mean, 0.0)


# -- helpers of the backends ---------------------------------------------------------------------------------------


def in_autocast(hidden: Tensor) -> Tensor:
    """The hidden vectors in autocast's dtype if it is on: autocast does not cast the inputs of our own operators."""
    device = hidden.device.type
    if hidden.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return hidden
    return hidden.to(torch.get_autocast_dtype(device))


def refuse_second_derivatives() -> None:
    """Raises in a backward with create_graph=True: autograd cannot differentiate gradients computed by hand."""
    if torch.is_grad_enabled():
        raise RuntimeError('second derivatives (create_graph=True) need backend="reference"')
