"""The two-level loss with Triton kernels: the cluster level's products by cuBLAS, the word level's over gathered rows.

Nothing waits for the device, launches depend on shapes alone, and no sum depends on the order in which programs
finish, so a step can be captured in a CUDA graph and two runs agree to the last bit. Launching a kernel takes the host
longer than most of them take the GPU, so a batch is one autograd node of few launches, projections included.

Shapes: T tokens, D width, V words, C clusters, S most words in a cluster.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.clustering.partition import Partition
from coterie.kernels import products, softmax
from coterie.kernels.grouping import prepare
from coterie.kernels.operator import Operator
from coterie.kernels.streams import beside
from coterie.loss.dispatch import Batch, Books
from coterie.loss.levels import Vectors, folded, in_autocast, project, refuse_second_derivatives, side_by_side

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Numbers of a batch of hidden vectors from which on it pays to map the clusters instead of the tokens: before, four
# small products and their launches take as long as the large one.
LARGE = 2**23


def compute(hidden: Tensor, vectors: Vectors, target: Tensor, partition: Partition, books: Books) -> Batch:
    """As `dispatch.by_reference`; products in the dtype of the hidden vectors, or in autocast's, sums in float32."""
    hidden = in_autocast(hidden)
    if hidden.dtype not in DTYPES:
        raise TypeError(
            f"the Triton kernels compute in float32, bfloat16 or float16; got {hidden.dtype}: convert the layer "
            'or build it with backend="torch"'
        )
    with beside(hidden) as join:
        word, grouping = prepare(target, partition, books.ignore_index, books.tally)
    if books.look is not None:
        books.look()
    index = Index(word, *grouping, partition.cluster_of, partition.words, partition.offsets)
    _, _, cluster_weight, cluster_bias, prior, weight, bias = vectors
    cluster_hidden, projection = hidden, vectors.projection
    if torch.compiler.is_compiling():
        join()
        if projection is not None and vectors.activation is None and hidden.numel() >= LARGE:
            cluster_hidden, word_hidden, cluster_weight = folded(hidden, projection, cluster_weight)
        else:
            cluster_hidden, word_hidden = project(hidden, vectors)
        learned = cluster_weight, cluster_bias, prior, weight, bias
        output, even, loss, sums, tally, *_ = _levels(cluster_hidden, word_hidden, *learned, *index, partition.capacity)
        books.sums.add_(sums)
        books.tally.add_(tally)
        return Batch(output, even, loss, word, grouping, cluster_hidden)
    seen = hidden
    if vectors.activation is not None:
        seen, projection = side_by_side(hidden, vectors), None
        cluster_hidden = seen[:, : hidden.shape[1]]
    output, even, loss = _Step.apply(  # type: ignore[no-untyped-call]
        seen, projection, cluster_weight, cluster_bias, weight, bias, prior,
        join, partition.capacity, books.sums, books.tally, *index,
    )  # fmt: skip
    return Batch(output, even, loss, word, grouping, cluster_hidden)


class Index(NamedTuple):
    """Where tokens, words and clusters stand."""

    target: Tensor  # (T,) -1: left out
    order: Tensor  # (T,) as in `Grouping`
    place: Tensor  # (T,)
    starts: Tensor  # (C + 1,)
    cluster_of: Tensor  # (V,) as in `Partition`
    words: Tensor  # (V,)
    offsets: Tensor  # (C + 1,)

    def of_words(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What products need: order, starts, words, offsets."""
        return self.order, self.starts, self.words, self.offsets


class Saved(NamedTuple):
    """What the backward needs of the forward."""

    cluster_logits: Tensor  # (T, C) in the products' dtype, without what is added to them
    logits: Tensor  # (T, padded S) float32, tokens in order
    totals: Tensor  # (4 T + 1,) float32: see `kernels.softmax.forward`


class _Step(torch.autograd.Function):
    """A batch, called directly."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        projection: Tensor | None,
        cluster_weight: Tensor,
        cluster_bias: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        prior: Tensor | None,
        join: Callable[[], None],
        capacity: int,
        sums: Tensor,
        tally: Tensor,
        *index: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden vectors (T, D), with an activation h_c and h_w side by side (T, 2D) → log P(target) (T,), the mean of
        both levels' log P (T,), the loss ()."""
        at = Index(*index)
        dtype, width = hidden.dtype, weight.shape[1]
        maps = None if projection is None else projection.to(dtype)
        vectors = cluster_weight.to(dtype)
        ctx.folds = maps is not None and hidden.numel() >= LARGE
        if maps is None:
            both = products.dense_rows(hidden)
        elif ctx.folds:
            to_cluster, to_word = maps.chunk(2)
            vectors = vectors @ to_cluster
            both = hidden @ to_word.T  # h_w alone
        else:
            both = hidden @ maps.T
        cluster_hidden, word_hidden = (hidden, both) if ctx.folds else _halves(both, width)
        join()
        output, even, loss, saved = _forward(
            cluster_hidden, word_hidden, vectors, cluster_bias, prior, weight, bias, at, capacity, sums, tally
        )
        ctx.save_for_backward(
            hidden, projection, maps, both, cluster_weight, vectors, cluster_bias, prior, weight, bias, *saved, *at
        )
        ctx.set_materialize_grads(False)  # a result that is not used has gradient None: nothing to fill or read
        return output, even, loss

    @staticmethod
    def backward(
        ctx: Any, grad_output: Tensor | None, grad_even: Tensor | None, grad_loss: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        (
            hidden, projection, maps, both, cluster_weight, vectors, cluster_bias, prior, weight, bias, *rest
        ) = ctx.saved_tensors  # fmt: skip
        saved, at = Saved(*rest[:3]), Index(*rest[3:])
        grad_both = torch.empty_like(both)
        if ctx.folds:
            grad_hidden = torch.empty_like(hidden)
            sides, grads = (hidden, both), (grad_hidden, grad_both)
        else:
            sides, grads = _halves(both, weight.shape[1]), _halves(grad_both, weight.shape[1])
        grad_vectors, grad_cluster_bias, grad_weight, grad_bias = _backward(
            (grad_output, grad_even, grad_loss), saved, *sides, vectors, cluster_bias, prior, weight, bias, at, *grads
        )
        grad_projection = None
        if maps is None:
            grad_hidden = grad_both
        elif ctx.folds:
            to_cluster, to_word = maps.chunk(2)
            grad_hidden.addmm_(grad_both, to_word)
            grad_projection = torch.empty_like(maps)
            grad_to_cluster, grad_to_word = grad_projection.chunk(2)
            torch.mm(cluster_weight.to(maps.dtype).T, grad_vectors, out=grad_to_cluster)
            torch.mm(grad_both.T, hidden, out=grad_to_word)
            grad_vectors = grad_vectors @ to_cluster.T
        else:
            grad_hidden = grad_both @ maps
            grad_projection = grad_both.T @ hidden
        if grad_projection is not None:
            grad_projection = grad_projection.to(projection.dtype)
        return (
            grad_hidden, grad_projection, grad_vectors.to(cluster_weight.dtype), grad_cluster_bias, grad_weight,
            grad_bias, *(None,) * 12,
        )  # fmt: skip


def _halves(both: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """h_c and h_w of both side by side (T, 2D), or one vector (T, D) for both."""
    if both.shape[1] == width:
        return both, both
    cluster_hidden, word_hidden = both.split(width, 1)
    return cluster_hidden, word_hidden


def _forward(
    cluster_hidden: Tensor,
    word_hidden: Tensor,
    cluster_weight: Tensor,
    cluster_bias: Tensor | None,
    prior: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    at: Index,
    capacity: int,
    sums: Tensor,
    tally: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Saved]:
    """log P(target) (T,), the mean of both levels' log P (T,), the loss () and what the backward needs.

    `cluster_weight` (C, D) in the dtype of the hidden vectors (T, D); the batch is entered in `sums` and `tally`.
    """
    (n_tokens, _), n_clusters = word_hidden.shape, cluster_weight.shape[0]
    output, even = (torch.empty(n_tokens, dtype=torch.float32, device=weight.device) for _ in range(2))
    loss = torch.empty((), dtype=torch.float32, device=weight.device)
    saved = Saved(
        word_hidden.new_empty(n_tokens, n_clusters),
        torch.empty(n_tokens, products.padded(capacity), dtype=torch.float32, device=weight.device),
        torch.empty(4 * n_tokens + 1, dtype=torch.float32, device=weight.device),
    )
    if n_tokens == 0:
        loss.zero_()
        tally[3:] += 1
        return output, even, loss, saved
    with torch.cuda.device_of(weight):
        with beside(word_hidden) as join:
            # Written with `out=`, which autocast leaves alone: the operands have their dtype.
            torch.mm(cluster_hidden, cluster_weight.T, out=saved.cluster_logits)
        products.logits(word_hidden, products.dense_rows(weight), bias, *at.of_words(), saved.logits, saved.totals)
        join()
        softmax.forward(
            saved.cluster_logits, cluster_bias, prior, saved.logits, at.order, at.place, at.starts, at.target,
            at.cluster_of, at.offsets, output, even, loss, saved.totals, sums, tally,
        )  # fmt: skip
    return output, even, loss, saved


def _backward(
    grads: tuple[Tensor | None, Tensor | None, Tensor | None],
    saved: Saved,
    cluster_hidden: Tensor,
    word_hidden: Tensor,
    cluster_weight: Tensor,
    cluster_bias: Tensor | None,
    prior: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    at: Index,
    grad_cluster_hidden: Tensor,
    grad_word_hidden: Tensor,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """Gradients of `cluster_weight`, `cluster_bias`, `weight` and `bias`; writes those of the hidden vectors (T, D).

    `grads`: of `_forward`'s first three results; None: zero. One hidden vector for both levels has one gradient.
    """
    grad_bias, grad_cluster_bias = (None if part is None else torch.empty_like(part) for part in (bias, cluster_bias))
    grad_weight = weight.new_empty(weight.shape)
    given = (grad_weight, grad_cluster_hidden, grad_word_hidden, grad_bias, grad_cluster_bias)
    if word_hidden.shape[0] == 0 or all(grad is None for grad in grads):
        for gradient in given:
            if gradient is not None:
                gradient.zero_()
        return torch.zeros_like(cluster_weight), grad_cluster_bias, grad_weight, grad_bias
    grad_cluster_logits = torch.empty_like(saved.cluster_logits)
    grad_logits = torch.empty_like(saved.logits, dtype=word_hidden.dtype)
    with torch.cuda.device_of(weight):
        softmax.backward(
            *grads, saved.cluster_logits, cluster_bias, prior, saved.logits, saved.totals, at.order, at.place,
            at.starts, at.target, at.cluster_of, at.offsets, grad_cluster_logits, grad_logits,
        )  # fmt: skip
        with beside(word_hidden) as join:
            torch.mm(grad_cluster_logits, cluster_weight, out=grad_cluster_hidden)
            grad_cluster_weight = grad_cluster_logits.T @ cluster_hidden
        products.grad_weight(
            grad_logits, word_hidden, grad_cluster_logits, *at.of_words(), grad_weight, grad_bias, grad_cluster_bias
        )
        # One vector for both levels: its two gradients add up.
        add = grad_word_hidden is grad_cluster_hidden
        if add:
            join()
        products.grad_hidden(grad_logits, products.dense_rows(weight), *at.of_words(), grad_word_hidden, add=add)
        join()
    return grad_cluster_weight, grad_cluster_bias, grad_weight, grad_bias


# -- for the compiler ---------------------------------------------------------------------------------------------


def _levels_forward(
    cluster_hidden: Tensor,
    word_hidden: Tensor,
    cluster_weight: Tensor,
    cluster_bias: Tensor | None,
    prior: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    order: Tensor,
    place: Tensor,
    starts: Tensor,
    cluster_of: Tensor,
    words: Tensor,
    offsets: Tensor,
    capacity: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `_forward`, without a change of anything given: what to add to sums and tally is returned."""
    cluster_hidden, word_hidden = products.dense_rows(cluster_hidden), products.dense_rows(word_hidden)
    at = Index(target.contiguous(), order, place, starts, cluster_of, words, offsets)
    sums, tally = target.new_zeros(3, dtype=torch.float64), target.new_zeros(4)
    output, even, loss, saved = _forward(
        cluster_hidden, word_hidden, cluster_weight.to(word_hidden.dtype), cluster_bias, prior, weight, bias, at,
        capacity, sums, tally,
    )  # fmt: skip
    return output, even, loss, sums, tally, *saved


def _levels_fake(cluster_hidden: Tensor, word_hidden: Tensor, cluster_weight: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    target, capacity, n_tokens = rest[4], rest[-1], word_hidden.shape[0]

    def floats(*shape: int) -> Tensor:
        return word_hidden.new_empty(shape, dtype=torch.float32)

    books = target.new_empty(3, dtype=torch.float64), target.new_empty(4)
    logits = word_hidden.new_empty(n_tokens, cluster_weight.shape[0]), floats(n_tokens, products.padded(capacity))
    return floats(n_tokens), floats(n_tokens), floats(), *books, *logits, floats(4 * n_tokens + 1)


def _levels_backward(
    grad_output: Tensor | None,
    grad_even: Tensor | None,
    grad_loss: Tensor | None,
    cluster_logits: Tensor,
    logits: Tensor,
    totals: Tensor,
    cluster_hidden: Tensor,
    word_hidden: Tensor,
    cluster_weight: Tensor,
    cluster_bias: Tensor | None,
    prior: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    order: Tensor,
    place: Tensor,
    starts: Tensor,
    cluster_of: Tensor,
    words: Tensor,
    offsets: Tensor,
) -> list[Tensor]:
    """Gradients of both hidden, cluster_weight, cluster_bias, weight and bias; empty where there is none."""
    cluster_hidden, word_hidden = products.dense_rows(cluster_hidden), products.dense_rows(word_hidden)
    at = Index(target.contiguous(), order, place, starts, cluster_of, words, offsets)
    grad_hiddens = cluster_hidden.new_empty(cluster_hidden.shape), word_hidden.new_empty(word_hidden.shape)
    grad_cluster_weight, grad_cluster_bias, grad_weight, grad_bias = _backward(
        (grad_output, grad_even, grad_loss), Saved(cluster_logits, logits, totals), cluster_hidden, word_hidden,
        cluster_weight.to(word_hidden.dtype), cluster_bias, prior, weight, bias, at, *grad_hiddens,
    )  # fmt: skip
    none = weight.new_empty(0)
    return [
        *grad_hiddens, grad_cluster_weight.to(cluster_weight.dtype),
        none if grad_cluster_bias is None else grad_cluster_bias, grad_weight, none if grad_bias is None else grad_bias,
    ]  # fmt: skip


def _levels_backward_fake(*inputs: Any) -> list[Tensor]:
    cluster_hidden, word_hidden, cluster_weight, cluster_bias, _, weight, bias = inputs[6:13]
    given = (cluster_hidden, word_hidden, cluster_weight, cluster_bias, weight, bias)
    return [weight.new_empty(0) if part is None else part.new_empty(part.shape) for part in given]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[5:], *inputs[:-1])
    ctx.mark_non_differentiable(*output[3:])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    of_hidden, of_word_hidden, of_clusters, of_cluster_bias, of_weight, of_bias = _gradients.op(
        *grads[:3], *ctx.saved_tensors
    )
    found = (of_hidden, of_word_hidden, of_clusters, of_cluster_bias, None, of_weight, of_bias)
    needed = ctx.needs_input_grad[:7]
    return *(part if wanted else None for part, wanted in zip(found, needed, strict=True)), *(None,) * 8


_gradients = Operator("levels_backward", _levels_backward, _levels_backward_fake)
_levels = Operator("levels", _levels_forward, _levels_fake)
_levels.op.register_autograd(_differentiate, setup_context=_setup_context)
