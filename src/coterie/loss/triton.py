"""The two-level loss with Triton kernels: cuBLAS multiplies the cluster level, the kernels the word level.

Nothing synchronises, launches depend on shapes alone, and no sum depends on the order in which programs finish, so a
step can be captured in a CUDA graph, and two runs agree to the last bit. Because the host takes longer to launch most
kernels than the GPU to run them, a batch is one autograd node of few launches, projections included.

Shapes: T tokens, D width, V words, C clusters, S most words in a cluster.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.clustering.partition import Partition
from coterie.kernels import products, softmax
from coterie.kernels.grouping import prepare
from coterie.kernels.operator import Operator
from coterie.kernels.streams import Beside
from coterie.loss.dispatch import Batch, Books
from coterie.loss.levels import Vectors, folded, in_autocast, project, refuse_second_derivatives, side_by_side

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# From this many numbers in the hidden vectors on, projecting the cluster vectors instead of the tokens is faster:
# below, its four small products and their launches take as long as one large product.
LARGE = 2**23

Grads = tuple[Tensor | None, Tensor | None, Tensor | None]  # of output and even (T,) and of the loss (); None: zero


class Fixed(NamedTuple):
    """What a batch reads that gets no gradient."""

    prior: Tensor | None  # (C,) as in `Vectors`
    table: Tensor  # (3 T + C + 1,) as in `Grouping`
    cluster_of: Tensor  # (V,) as in `Partition`
    words: Tensor  # (V,)
    offsets: Tensor  # (C + 1,)


class Saved(NamedTuple):
    """What the forward saves for the backward."""

    cluster_logits: Tensor  # (T, C) in the products' dtype, without the biases
    logits: Tensor  # (T, padded S) float32, tokens sorted
    totals: Tensor  # (4 T + 1,) float32: see `kernels.softmax.forward`


def compute(hidden: Tensor, vectors: Vectors, target: Tensor, partition: Partition, books: Books) -> Batch:
    """As `dispatch.by_reference`; products in the dtype of the hidden vectors, or in autocast's, sums in float32."""
    hidden = in_autocast(hidden)
    if hidden.dtype not in DTYPES:
        raise TypeError(
            f"the Triton kernels compute in float32, bfloat16 or float16; got {hidden.dtype}: convert the layer "
            'or build it with backend="torch"'
        )
    with Beside(hidden) as beside:
        grouping = prepare(target, partition, books.ignore_index, books.tally)
    if books.look is not None:
        books.look()
    projection, activation, cluster_weight, cluster_bias, prior, weight, bias = vectors
    cluster_bias, prior, bias = _dense(cluster_bias), _dense(prior), _dense(bias)
    fixed = Fixed(prior, grouping.table, partition.cluster_of, partition.words, partition.offsets)
    cluster_hidden = hidden
    if torch.compiler.is_compiling():
        if projection is not None and activation is None and hidden.numel() >= LARGE:
            cluster_hidden, word_hidden, cluster_weight = folded(hidden, projection, cluster_weight)
        else:
            cluster_hidden, word_hidden = project(hidden, vectors)
        output, even, loss, sums, tally, *_ = _levels(
            cluster_hidden, word_hidden, cluster_weight, cluster_bias, weight, bias, *fixed, partition.capacity
        )
        books.sums.add_(sums)
        books.tally.add_(tally)
        return Batch(output, even, loss, grouping, cluster_hidden)
    seen = hidden
    if activation is not None:
        seen, projection = side_by_side(hidden, vectors), None
        cluster_hidden = seen[:, : hidden.shape[1]]
    output, even, loss = _Step.apply(  # type: ignore[no-untyped-call]
        seen, projection, cluster_weight, cluster_bias, weight, bias, fixed, partition.capacity, books, beside
    )
    return Batch(output, even, loss, grouping, cluster_hidden)


def _dense(vector: Tensor | None) -> Tensor | None:
    """Kernels read a vector as one stretch of memory."""
    return vector if vector is None or vector.is_contiguous() else vector.contiguous()


class _Step(torch.autograd.Function):
    """A batch as one autograd node."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        projection: Tensor | None,
        cluster_weight: Tensor,
        cluster_bias: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        fixed: Fixed,
        capacity: int,
        books: Books,
        grouped: Beside,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """log P(target) (T,), the mean log P of both levels (T,) and the loss (), as in `Batch`.

        `hidden`: h (T, D), or, with an activation, h_c and h_w side by side (T, 2D)."""
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
        sides = (hidden, both) if ctx.folds else _halves(both, width)
        grouped.join()
        output, even, loss, saved = _forward(
            *sides, vectors, cluster_bias, weight, bias, fixed, capacity, books.sums, books.tally
        )
        # All of it through autograd: it notices in-place changes, and frees the buffers once they are used.
        ctx.save_for_backward(
            hidden, projection, cluster_weight, cluster_bias, weight, bias, maps, both, vectors, *saved, *fixed
        )
        ctx.set_materialize_grads(False)  # an unused output then has gradient None instead of zeros
        return output, even, loss

    @staticmethod
    def backward(
        ctx: Any, grad_output: Tensor | None, grad_even: Tensor | None, grad_loss: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        grads = grad_output, grad_even, grad_loss
        saved = ctx.saved_tensors  # read once: activation checkpointing computes them for this
        device = saved[0].device.type
        if not torch.is_autocast_enabled(device):
            return _differentiate(ctx, saved, grads)
        with torch.autocast(device, enabled=False):  # the dtypes are those of the forward
            return _differentiate(ctx, saved, grads)


def _differentiate(ctx: Any, saved: tuple[Any, ...], grads: Grads) -> tuple[Tensor | None, ...]:
    """The gradients of `_Step`'s inputs."""
    hidden, projection, cluster_weight, cluster_bias, weight, bias, maps, both, vectors, *rest = saved
    needs_hidden, needs_projection, *_ = ctx.needs_input_grad
    grad_both = torch.empty_like(both)
    grad_hidden: Tensor | None = grad_both
    if ctx.folds:
        grad_hidden = torch.empty_like(hidden)
        sides, out = (hidden, both), (grad_hidden, grad_both)
    else:
        sides, out = _halves(both, weight.shape[1]), _halves(grad_both, weight.shape[1])
    grad_vectors, grad_cluster_bias, grad_weight, grad_bias = _backward(
        grads, Saved(*rest[:3]), sides, vectors, cluster_bias, weight, bias, Fixed(*rest[3:]), out
    )
    grad_projection = None
    if ctx.folds:
        to_cluster, to_word = maps.chunk(2)
        out[0].addmm_(grad_both, to_word)
        grad_projection = torch.empty_like(maps)
        grad_to_cluster, grad_to_word = grad_projection.chunk(2)
        torch.mm(cluster_weight.to(maps.dtype).T, grad_vectors, out=grad_to_cluster)
        torch.mm(grad_both.T, hidden, out=grad_to_word)
        grad_vectors = grad_vectors @ to_cluster.T
    elif maps is not None:
        grad_hidden = grad_both @ maps if needs_hidden else None
        grad_projection = grad_both.T @ hidden if needs_projection else None
    if grad_projection is not None:
        grad_projection = grad_projection.to(projection.dtype)
    of_clusters = grad_vectors.to(cluster_weight.dtype)
    return grad_hidden, grad_projection, of_clusters, grad_cluster_bias, grad_weight, grad_bias, *(None,) * 4


def _halves(both: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Splits (T, 2D) into h_c and h_w; (T, D) is both of them."""
    if both.shape[1] == width:
        return both, both
    cluster_hidden, word_hidden = both.split(width, 1)
    return cluster_hidden, word_hidden


def _forward(
    cluster_hidden: Tensor,
    word_hidden: Tensor,
    cluster_weight: Tensor,
    cluster_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    fixed: Fixed,
    capacity: int,
    sums: Tensor,
    tally: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Saved]:
    """log P(target) (T,), the mean log P of both levels (T,), the loss () and what the backward needs.

    `cluster_weight` (C, D) in the dtype of the hidden vectors (T, D); adds the batch to `fixed.sums` and `fixed.tally`.
    """
    prior, table, cluster_of, words, offsets = fixed
    n_tokens, device = word_hidden.shape[0], weight.device
    output, even = (torch.empty(n_tokens, dtype=torch.float32, device=device) for _ in range(2))
    loss = torch.empty((), dtype=torch.float32, device=device)
    saved = Saved(
        torch.empty(n_tokens, cluster_weight.shape[0], dtype=word_hidden.dtype, device=device),
        torch.empty(n_tokens, products.padded(capacity), dtype=torch.float32, device=device),
        torch.empty(4 * n_tokens + 1, dtype=torch.float32, device=device),
    )
    if n_tokens == 0:
        loss.zero_()
        tally[3:] += 1
        return output, even, loss, saved
    with torch.cuda.device_of(weight):
        with Beside(word_hidden) as beside:
            # With `out=`, because autocast does not change it: the operands already have the right dtype.
            torch.mm(cluster_hidden, cluster_weight.T, out=saved.cluster_logits)
        products.logits(
            word_hidden, products.dense_rows(weight), bias, table, words, offsets, saved.logits, saved.totals
        )
        beside.join()
        softmax.forward(
            saved.cluster_logits, cluster_bias, prior, saved.logits, table, cluster_of, offsets,
            output, even, loss, saved.totals, sums, tally,
        )  # fmt: skip
    return output, even, loss, saved


def _backward(
    grads: Grads,
    saved: Saved,
    sides: tuple[Tensor, Tensor],
    cluster_weight: Tensor,
    cluster_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    fixed: Fixed,
    out: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """Gradients of `cluster_weight`, `cluster_bias`, `weight` and `bias`; writes those of h_c and h_w to `out`.

    `grads`: those of `_forward`'s first three results, None for zero. `sides`: h_c and h_w (T, D); if they are one
    tensor, so are their gradients.
    """
    prior, table, cluster_of, words, offsets = fixed
    (cluster_hidden, word_hidden), (grad_cluster_hidden, grad_word_hidden) = sides, out
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
            *grads, saved.cluster_logits, cluster_bias, prior, saved.logits, saved.totals, table, cluster_of, offsets,
            grad_cluster_logits, grad_logits,
        )  # fmt: skip
        with Beside(word_hidden) as beside:
            torch.mm(grad_cluster_logits, cluster_weight, out=grad_cluster_hidden)
            grad_cluster_weight = grad_cluster_logits.T @ cluster_hidden
        products.grad_weight(
            grad_logits, word_hidden, grad_cluster_logits, table, words, offsets,
            grad_weight, grad_bias, grad_cluster_bias,
        )  # fmt: skip
        # If both levels have the same input, its two gradients are added.
        add = grad_word_hidden is grad_cluster_hidden
        if add:
            beside.join()
        products.grad_hidden(grad_logits, products.dense_rows(weight), table, words, offsets, grad_word_hidden, add=add)
        beside.join()
    return grad_cluster_weight, grad_cluster_bias, grad_weight, grad_bias


# -- for torch.compile ---------------------------------------------------------------------------------------------


def _levels_forward(
    cluster_hidden: Tensor,
    word_hidden: Tensor,
    cluster_weight: Tensor,
    cluster_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    prior: Tensor | None,
    table: Tensor,
    cluster_of: Tensor,
    words: Tensor,
    offsets: Tensor,
    capacity: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The same as `_forward`, but functional: returns what to add to sums and tally."""
    cluster_hidden, word_hidden = products.dense_rows(cluster_hidden), products.dense_rows(word_hidden)
    sums, tally = table.new_zeros(3, dtype=torch.float64), table.new_zeros(4)
    fixed = Fixed(prior, table, cluster_of, words, offsets)
    rounded = cluster_weight.to(word_hidden.dtype)
    output, even, loss, saved = _forward(
        cluster_hidden, word_hidden, rounded, cluster_bias, weight, bias, fixed, capacity, sums, tally
    )
    return output, even, loss, sums, tally, *saved


def _levels_fake(cluster_hidden: Tensor, word_hidden: Tensor, cluster_weight: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    table, capacity, n_tokens = rest[4], rest[-1], word_hidden.shape[0]

    def floats(*shape: int) -> Tensor:
        return word_hidden.new_empty(shape, dtype=torch.float32)

    books = table.new_empty(3, dtype=torch.float64), table.new_empty(4)
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
    weight: Tensor,
    bias: Tensor | None,
    prior: Tensor | None,
    table: Tensor,
    cluster_of: Tensor,
    words: Tensor,
    offsets: Tensor,
) -> list[Tensor]:
    """Gradients of h_c, h_w, cluster_weight, cluster_bias, weight and bias; an empty tensor for a missing bias."""
    cluster_hidden, word_hidden = products.dense_rows(cluster_hidden), products.dense_rows(word_hidden)
    grad_hiddens = cluster_hidden.new_empty(cluster_hidden.shape), word_hidden.new_empty(word_hidden.shape)
    fixed = Fixed(prior, table, cluster_of, words, offsets)
    grad_cluster_weight, grad_cluster_bias, grad_weight, grad_bias = _backward(
        (grad_output, grad_even, grad_loss), Saved(cluster_logits, logits, totals), (cluster_hidden, word_hidden),
        cluster_weight.to(word_hidden.dtype), cluster_bias, weight, bias, fixed, grad_hiddens,
    )  # fmt: skip
    # An empty tensor each: an operator may not return the same one twice.
    found = (grad_cluster_weight.to(cluster_weight.dtype), grad_cluster_bias, grad_weight, grad_bias)
    return [*grad_hiddens, *(weight.new_empty(0) if part is None else part for part in found)]


def _levels_backward_fake(*inputs: Any) -> list[Tensor]:
    weight = inputs[10]
    return [weight.new_empty(0) if part is None else part.new_empty(part.shape) for part in inputs[6:12]]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[5:], *inputs[:-1])
    ctx.mark_non_differentiable(*output[3:])
    ctx.set_materialize_grads(False)


def _differentiate_compiled(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    found = _gradients.op(*grads[:3], *ctx.saved_tensors)
    needed = ctx.needs_input_grad[:6]
    return *(part if wanted else None for part, wanted in zip(found, needed, strict=True)), *(None,) * 6


_gradients = Operator("levels_backward", _levels_backward, _levels_backward_fake)
_levels = Operator("levels", _levels_forward, _levels_fake)
_levels.op.register_autograd(_differentiate_compiled, setup_context=_setup_context)
