"""Projections, the root (clusters and words that stand alone), and the types that all backends share.

Shapes: T tokens, D width, V words, C clusters, N places for words that stand alone.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.clustering.partition import Partition

# What the parameter of a linear map is multiplied by is this divided by the width; see `step_of`.
STEP = 50

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "tanh": torch.tanh, "gelu": F.gelu}


class Vectors(NamedTuple):
    """The parameters of a layer, and its prior."""

    projection: Tensor | None  # (2D, D) of the maps from h to h_c and to h_w, see `maps`; None: both are h
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

    cluster: Tensor  # log P(c|h) of the target's cluster, or log P(w|h) of a target that stands alone
    word: Tensor  # log P(w|c, h) of the target; 0 if it stands alone
    mean_cluster: Tensor  # the mean over all words of log P of their clusters, or of the words that stand alone
    mean_word: Tensor  # the mean of log P(w|c, h) over the words of the target's cluster; 0 if it stands alone


# -- projections --------------------------------------------------------------------------------------------------


def step_of(width: int) -> float:
    """What the parameter of a linear map is multiplied by, before the identity is added.

    An optimizer such as Adam moves every number of a D × D matrix as far as one of a vector, and in a product D of them
    add up. With the whole matrix as the parameter, a Transformer 512 wide, trained at a high learning rate, ended at a
    perplexity 2.5% higher.
    """
    return min(1.0, STEP / width)


def maps(vectors: Vectors) -> Tensor | None:
    """The two maps, one above the other, (2D, D): the parameter itself if an activation follows, otherwise the identity
    plus `step_of` its width times it; None: there are none."""
    projection = vectors.projection
    if projection is None or vectors.activation is not None:
        return projection
    identity = torch.eye(projection.shape[1], dtype=projection.dtype, device=projection.device)
    return torch.add(identity.repeat(2, 1), projection, alpha=step_of(projection.shape[1]))


def project(hidden: Tensor, vectors: Vectors) -> tuple[Tensor, Tensor]:
    """h_c and h_w, the inputs of the two levels: (T, D) → (T, D) both."""
    if vectors.projection is None:
        return hidden, hidden
    # split, not two slices: in the backward each slice would make a gradient of full size, and autograd add the two.
    cluster_hidden, word_hidden = side_by_side(hidden, vectors).split(hidden.shape[1], 1)
    return cluster_hidden, word_hidden


def side_by_side(hidden: Tensor, vectors: Vectors) -> Tensor:
    """h_c and h_w in one tensor, (T, D) → (T, 2D); without projection h itself, (T, D)."""
    both_maps = maps(vectors)
    if both_maps is None:
        return hidden
    both = F.linear(hidden, both_maps)
    return both if vectors.activation is None else ACTIVATIONS[vectors.activation](both)


def project_few(hidden: Tensor, vectors: Vectors, root: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """h_c, h_w (T, D) and `root` (C + N, D); or, if it is less work, h in place of h_c and the root `folded`."""
    both_maps = maps(vectors)
    if both_maps is None or vectors.activation is not None or hidden.shape[0] < 2 * len(root):
        return *project(hidden, vectors), root
    return folded(hidden, both_maps, root)


def folded(hidden: Tensor, projection: Tensor, root: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """h, h_w (T, D) and U_c W_c (C + N, D): as h_c · U_c = h · (U_c W_c), it projects the root instead of tokens."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(hidden.device.type):
        return _fold(hidden, projection, root)
    levels: tuple[Tensor, Tensor, Tensor] = _Folded.apply(  # type: ignore[no-untyped-call]
        hidden, projection, root
    )
    return levels


def _fold(hidden: Tensor, projection: Tensor, root: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    to_cluster, to_word = projection.chunk(2)
    return hidden, F.linear(hidden, to_word), root @ to_cluster


class _Folded(torch.autograd.Function):
    """`_fold` with a backward whose products write to their place in the gradients; autograd would copy them there."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, projection: Tensor, root: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(hidden, projection, root)
        return _fold(hidden, projection, root)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        refuse_second_derivatives()
        hidden, projection, root = ctx.saved_tensors
        grad_hidden, grad_word_hidden, grad_vectors = grads
        to_cluster, to_word = projection.chunk(2)
        of_hidden = of_projection = of_root = None
        if ctx.needs_input_grad[0]:
            of_hidden = grad_hidden.addmm_(grad_word_hidden, to_word)  # in-place: no one else uses this gradient
        if ctx.needs_input_grad[1]:
            of_projection = torch.empty_like(projection)
            to_cluster_grad, to_word_grad = of_projection.chunk(2)
            torch.mm(root.T, grad_vectors, out=to_cluster_grad)
            torch.mm(grad_word_hidden.T, hidden, out=to_word_grad)
        if ctx.needs_input_grad[2]:
            of_root = grad_vectors @ to_cluster.T
        return of_hidden, of_projection, of_root


@torch.no_grad()
def cluster_vectors(vectors: Vectors) -> tuple[Tensor, Tensor | None]:
    """The cluster vectors (C, D) and biases (C,) that go with the hidden vectors that the statistic averages."""
    shift = vectors.cluster_shift()
    both_maps = maps(vectors)
    if both_maps is None or vectors.activation is not None:
        return vectors.cluster_weight, shift
    to_cluster, _ = both_maps.chunk(2)
    exact = torch.promote_types(to_cluster.dtype, torch.float32)
    return vectors.cluster_weight.to(exact) @ to_cluster.to(exact), None if shift is None else shift.to(exact)


# -- the root: clusters, and words that stand alone ---------------------------------------------------------------


def root_rows(vectors: Vectors, partition: Partition) -> tuple[Tensor, Tensor]:
    """The vectors of the root's columns, (C + N, D), and the word vectors (V, D) to compute the rest with.

    Words that stand alone have their row of `weight` in the root, too. Take the matrix from here, so that autograd
    adds their gradient to the rows of a single V × D gradient, instead of a second one that is zero elsewhere.
    """
    if not partition.n_own:
        return vectors.cluster_weight, vectors.weight
    if torch.compiler.is_compiling():
        weight, rows = vectors.weight, vectors.weight.index_select(0, partition.slots)
    else:
        weight, rows = _WithRows.apply(vectors.weight, partition.slots)  # type: ignore[no-untyped-call]
    return torch.cat((vectors.cluster_weight, rows)), weight


def root_shift(vectors: Vectors, partition: Partition) -> Tensor | None:
    """The total bias of the root's columns, (C + N,)."""
    shift = vectors.cluster_shift()
    if shift is None or vectors.bias is None or not partition.n_own:
        return shift
    return torch.cat((shift, vectors.bias.index_select(0, partition.slots)))


class _WithRows(torch.autograd.Function):
    """A matrix (V, D) and some of its rows, (V, D), (N,) → (V, D), (N, D)."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(rows)
        ctx.shape = weight.shape
        return weight.view_as(weight), weight.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_rows: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives of log_prob
            return grad.index_add(0, rows, grad_rows), None
        return grad.index_add_(0, rows, grad_rows), None  # in-place: no one else uses this gradient


def cluster_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The clusters' logits: (T, D), (C, D), (C,) → (T, C), in float32 at least."""
    logits = F.linear(hidden, weight, bias)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def root_log_softmax(logits: Tensor, sizes: Tensor) -> Tensor:
    """log P of every column of the root, -inf for empty ones: (T, C + N) → (T, C + N). `sizes` (C + N,): their words.

    An empty column must have probability 0, or the words' probabilities would not sum to one.
    """
    return logits.masked_fill(sizes == 0, -torch.inf).log_softmax(-1)


def root_level(logits: Tensor, target: Tensor, partition: Partition) -> tuple[Tensor, Tensor]:
    """log P of the target's column, and its mean over all words' columns: (T, C + N), (T,) → (T,), (T,)."""
    sizes = partition.root_sizes
    log_p = root_log_softmax(logits, sizes)
    mean = torch.where(sizes > 0, log_p, 0.0) @ (sizes.to(log_p.dtype) / partition.n_words)
    own = log_p.gather(1, partition.column(target.clamp(min=0))[:, None]).squeeze(1)
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
