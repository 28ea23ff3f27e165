"""The two-level loss with Triton kernels: cuBLAS multiplies the root, the kernels the word level.

Nothing synchronises, launches depend on shapes alone, and no sum depends on the order in which programs finish, so a
step can be captured in a CUDA graph, and two runs agree to the last bit. Because the host takes longer to launch most
kernels than the GPU to run them, a batch is one autograd node of few launches, projections included.

Shapes: T tokens, D width, V words, C clusters, N places for words that stand alone, R = C + N columns of the root, S
most words in a cluster.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.clustering.partition import Partition
from coterie.kernels import products, root, softmax
from coterie.kernels.grouping import prepare
from coterie.kernels.operator import Operator
from coterie.kernels.streams import Beside
from coterie.loss.dispatch import Batch, Books
from coterie.loss.levels import Vectors, in_autocast, maps, project, refuse_second_derivatives, side_by_side, step_of

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# From this many numbers in the hidden vectors on, projecting the root's vectors instead of the tokens is faster:
# below, its four small products and their launches take as long as one large product.
LARGE = 2**23

Grads = tuple[Tensor | None, Tensor | None, Tensor | None]  # of output and even (T,) and of the loss (); None: zero


class Fixed(NamedTuple):
    """What a batch reads that gets no gradient."""

    prior: Tensor | None  # (C,) as in `Vectors`
    table: Tensor  # (3 T + C + 2,) as in `Grouping`
    cluster_of: Tensor  # (V,) as in `Partition`
    words: Tensor  # (V,)
    offsets: Tensor  # (C + 2,)
    root_sizes: Tensor  # (R,)


class Root(NamedTuple):
    """What is prepared to multiply with, in the products' dtype: see `kernels.root.gather`."""

    columns: Tensor  # (R, D)
    shift: Tensor  # (R,) float32
    maps: Tensor  # (2D, D); empty without projections


class Saved(NamedTuple):
    """What the forward saves for the backward."""

    columns: Tensor  # (R, D) the vectors of the root's columns, in the products' dtype
    folded: Tensor  # (R, D) the same times `fold`; empty without
    shift: Tensor  # (R,) float32, their biases
    root_logits: Tensor  # (T, R) in the products' dtype, without the biases
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
    fixed = Fixed(prior, grouping.table, partition.cluster_of, partition.words, partition.offsets, partition.root_sizes)
    cluster_hidden = hidden
    if torch.compiler.is_compiling():
        fold, both_maps = None, maps(vectors)
        if both_maps is not None and activation is None and hidden.numel() >= LARGE:
            fold, to_word = both_maps.to(hidden.dtype).chunk(2)
            word_hidden = F.linear(hidden, to_word)
        else:
            cluster_hidden, word_hidden = project(hidden, vectors)
        output, even, loss, sums, tally, *_ = _levels(
            cluster_hidden, word_hidden, fold, cluster_weight, cluster_bias, weight, bias, *fixed, partition.capacity
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
        gathered, fold = _gathered(cluster_weight, cluster_bias, weight, bias, fixed, hidden.dtype, projection), None
        ctx.folds = projection is not None and hidden.numel() >= LARGE
        if projection is None:
            both = products.dense_rows(hidden)
        elif ctx.folds:
            fold, to_word = gathered.maps.chunk(2)
            both = hidden @ to_word.T  # h_w alone
        else:
            both = hidden @ gathered.maps.T
        sides = (hidden, both) if ctx.folds else _halves(both, weight.shape[1])
        grouped.join()
        output, even, loss, saved = _forward(
            *sides, fold, gathered, weight, bias, fixed, capacity, books.sums, books.tally
        )
        # All of it through autograd: it notices in-place changes, and frees the buffers once they are used.
        ctx.save_for_backward(
            hidden, projection, cluster_weight, cluster_bias, weight, bias, gathered.maps, both, *saved, *fixed
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
    hidden, projection, cluster_weight, cluster_bias, weight, bias, both_maps, both, *rest = saved
    needs_hidden, needs_projection, *_ = ctx.needs_input_grad
    grad_both, step = torch.empty_like(both), step_of(weight.shape[1])
    grad_hidden: Tensor | None = grad_both
    fold = grad_fold = None
    grad_projection = None if projection is None else torch.empty_like(both_maps)
    if ctx.folds and grad_projection is not None:
        grad_hidden = torch.empty_like(hidden)
        (fold, to_word), (grad_fold, grad_to_word) = both_maps.chunk(2), grad_projection.chunk(2)
        sides, out = (hidden, both), (grad_hidden, grad_both)
    else:
        sides, out = _halves(both, weight.shape[1]), _halves(grad_both, weight.shape[1])
    parameters = cluster_weight, cluster_bias, weight, bias
    n_saved, fixed = len(Saved._fields), Fixed(*rest[len(Saved._fields) :])
    found = _backward(grads, Saved(*rest[:n_saved]), sides, fold, parameters, fixed, out, grad_fold, step)
    if grad_projection is None:
        return grad_hidden, None, *found, *(None,) * 4
    if ctx.folds:
        out[0].addmm_(grad_both, to_word)
        grad_to_word.addmm_(grad_both.T, hidden, beta=0, alpha=step)
    else:
        grad_hidden = grad_both @ both_maps if needs_hidden else None
        if needs_projection:
            grad_projection.addmm_(grad_both.T, hidden, beta=0, alpha=step)
    return grad_hidden, grad_projection.to(projection.dtype), *found, *(None,) * 4


def _halves(both: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Splits (T, 2D) into h_c and h_w; (T, D) is both of them."""
    if both.shape[1] == width:
        return both, both
    cluster_hidden, word_hidden = both.split(width, 1)
    return cluster_hidden, word_hidden


def _gathered(
    cluster_weight: Tensor,
    cluster_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    fixed: Fixed,
    dtype: torch.dtype,
    projection: Tensor | None,
) -> Root:
    with torch.cuda.device_of(weight):
        return Root(*root.gather(
            products.dense_rows(cluster_weight), cluster_bias, fixed.prior, products.dense_rows(weight), bias,
            fixed.words, fixed.offsets, fixed.root_sizes.shape[0] - cluster_weight.shape[0], dtype,
            None if projection is None else products.dense_rows(projection),
        ))  # fmt: skip


def _forward(
    root_hidden: Tensor,
    word_hidden: Tensor,
    fold: Tensor | None,
    gathered: Root,
    weight: Tensor,
    bias: Tensor | None,
    fixed: Fixed,
    capacity: int,
    sums: Tensor,
    tally: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Saved]:
    """log P(target) (T,), the mean log P of both levels (T,), the loss () and what the backward needs.

    `root_hidden`: h_c (T, D), or h, if `fold` (D, D) is given to multiply the root's vectors with. Adds the batch to
    `sums` and `tally`.
    """
    _, table, cluster_of, words, offsets, root_sizes = fixed
    columns, shift, _ = gathered
    n_tokens, device, dtype = word_hidden.shape[0], weight.device, word_hidden.dtype
    output, even = (torch.empty(n_tokens, dtype=torch.float32, device=device) for _ in range(2))
    loss = torch.empty((), dtype=torch.float32, device=device)
    saved = Saved(
        columns, columns.new_empty(0), shift,
        torch.empty(n_tokens, columns.shape[0], dtype=dtype, device=device),
        torch.empty(n_tokens, products.padded(capacity), dtype=torch.float32, device=device),
        torch.empty(4 * n_tokens + 1, dtype=torch.float32, device=device),
    )  # fmt: skip
    with torch.cuda.device_of(weight):
        if n_tokens == 0:
            loss.zero_()
            tally[3:4] += 1
            return output, even, loss, saved
        with Beside(word_hidden) as beside:
            if fold is not None:
                saved = saved._replace(folded=columns @ fold)
            # With `out=`, because autocast does not change it: the operands already have the right dtype.
            torch.mm(root_hidden, (columns if fold is None else saved.folded).T, out=saved.root_logits)
        products.logits(
            word_hidden, products.dense_rows(weight), bias, table, words, offsets, saved.logits, saved.totals
        )
        beside.join()
        softmax.forward(
            saved.root_logits, shift, saved.logits, table, cluster_of, offsets, root_sizes,
            output, even, loss, saved.totals, sums, tally,
        )  # fmt: skip
    return output, even, loss, saved


def _backward(
    grads: Grads,
    saved: Saved,
    sides: tuple[Tensor, Tensor],
    fold: Tensor | None,
    parameters: tuple[Tensor, Tensor | None, Tensor, Tensor | None],
    fixed: Fixed,
    out: tuple[Tensor, Tensor],
    grad_fold: Tensor | None,
    step: float = 1.0,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """Gradients of the `parameters` cluster_weight, cluster_bias, weight and bias.

    Writes those of h_c (or h) and h_w to `out`, and `step` times that of `fold` to `grad_fold`. `grads`: those of
    `_forward`'s first three results, None for zero. `sides`: h_c (or h) and h_w (T, D); if they are one tensor, so are
    their gradients.
    """
    _, table, cluster_of, words, offsets, root_sizes = fixed
    (root_hidden, word_hidden), (grad_root_hidden, grad_word_hidden) = sides, out
    *_, weight, _ = parameters
    found = tuple(None if part is None else part.new_empty(part.shape) for part in parameters)
    grad_cluster_weight, grad_cluster_bias, grad_weight, grad_bias = found
    assert grad_cluster_weight is not None
    assert grad_weight is not None
    if word_hidden.shape[0] == 0 or all(grad is None for grad in grads):
        for gradient in (*found, *out, grad_fold):
            if gradient is not None:
                gradient.zero_()
        return grad_cluster_weight, grad_cluster_bias, grad_weight, grad_bias
    grad_root_logits = torch.empty_like(saved.root_logits)
    grad_logits = torch.empty_like(saved.logits, dtype=word_hidden.dtype)
    with torch.cuda.device_of(weight):
        softmax.backward(
            *grads, saved.root_logits, saved.shift, saved.logits, saved.totals, table, cluster_of, offsets, root_sizes,
            grad_root_logits, grad_logits,
        )  # fmt: skip
        with Beside(word_hidden) as beside:
            torch.mm(grad_root_logits, saved.columns if fold is None else saved.folded, out=grad_root_hidden)
            grad_columns = grad_root_logits.T @ root_hidden
            if fold is not None and grad_fold is not None:
                grad_fold.addmm_(saved.columns.T, grad_columns, beta=0, alpha=step)
                grad_columns = grad_columns @ fold.T
            root.scatter(grad_columns, words, offsets, grad_cluster_weight, grad_weight)
        products.grad_weight(
            grad_logits, word_hidden, grad_root_logits, table, words, offsets,
            grad_weight, grad_bias, grad_cluster_bias,
        )  # fmt: skip
        # If both levels have the same input, its two gradients are added.
        add = grad_word_hidden is grad_root_hidden
        if add:
            beside.join()
        products.grad_hidden(grad_logits, products.dense_rows(weight), table, words, offsets, grad_word_hidden, add=add)
        beside.join()
    return grad_cluster_weight, grad_cluster_bias, grad_weight, grad_bias


# -- for torch.compile ---------------------------------------------------------------------------------------------


def _levels_forward(
    root_hidden: Tensor,
    word_hidden: Tensor,
    fold: Tensor | None,
    cluster_weight: Tensor,
    cluster_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    prior: Tensor | None,
    table: Tensor,
    cluster_of: Tensor,
    words: Tensor,
    offsets: Tensor,
    root_sizes: Tensor,
    capacity: int,
) -> list[Tensor]:
    """The same as `_forward`, but functional: returns what to add to sums and tally, then what the backward needs."""
    root_hidden, word_hidden = products.dense_rows(root_hidden), products.dense_rows(word_hidden)
    sums, tally = table.new_zeros(3, dtype=torch.float64), table.new_zeros(5)
    fixed = Fixed(prior, table, cluster_of, words, offsets, root_sizes)
    gathered = _gathered(cluster_weight, cluster_bias, weight, bias, fixed, word_hidden.dtype, None)
    output, even, loss, saved = _forward(
        root_hidden, word_hidden, fold, gathered, weight, bias, fixed, capacity, sums, tally
    )
    return [output, even, loss, sums, tally, *saved]


def _levels_fake(
    root_hidden: Tensor, word_hidden: Tensor, fold: Tensor | None, cluster_weight: Tensor, *rest: Any
) -> list[Tensor]:
    table, root_sizes, capacity = rest[4], rest[-2], rest[-1]
    n_tokens, n_columns, width = word_hidden.shape[0], root_sizes.shape[0], word_hidden.shape[1]

    def floats(*shape: int) -> Tensor:
        return word_hidden.new_empty(shape, dtype=torch.float32)

    books = table.new_empty(3, dtype=torch.float64), table.new_empty(5)
    folded = word_hidden.new_empty(0) if fold is None else word_hidden.new_empty(n_columns, width)
    columns = word_hidden.new_empty(n_columns, width), folded, floats(n_columns)
    logits = word_hidden.new_empty(n_tokens, n_columns), floats(n_tokens, products.padded(capacity))
    return [floats(n_tokens), floats(n_tokens), floats(), *books, *columns, *logits, floats(4 * n_tokens + 1)]


def _levels_backward(
    grad_output: Tensor | None,
    grad_even: Tensor | None,
    grad_loss: Tensor | None,
    saved: list[Tensor],
    root_hidden: Tensor,
    word_hidden: Tensor,
    fold: Tensor | None,
    cluster_weight: Tensor,
    cluster_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    prior: Tensor | None,
    table: Tensor,
    cluster_of: Tensor,
    words: Tensor,
    offsets: Tensor,
    root_sizes: Tensor,
) -> list[Tensor]:
    """Gradients of the first seven inputs of `_levels_forward`; an empty tensor for one that is missing."""
    root_hidden, word_hidden = products.dense_rows(root_hidden), products.dense_rows(word_hidden)
    grad_hiddens = root_hidden.new_empty(root_hidden.shape), word_hidden.new_empty(word_hidden.shape)
    grad_fold = None if fold is None else fold.new_empty(fold.shape)
    found = _backward(
        (grad_output, grad_even, grad_loss), Saved(*saved), (root_hidden, word_hidden), fold,
        (cluster_weight, cluster_bias, weight, bias), Fixed(prior, table, cluster_of, words, offsets, root_sizes),
        grad_hiddens, grad_fold,
    )  # fmt: skip
    # An empty tensor each: an operator may not return the same one twice.
    return [*grad_hiddens, *(weight.new_empty(0) if part is None else part for part in (grad_fold, *found))]


def _levels_backward_fake(*inputs: Any) -> list[Tensor]:
    weight = inputs[9]
    return [weight.new_empty(0) if part is None else part.new_empty(part.shape) for part in inputs[4:11]]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.save_for_backward(*output[5:], *inputs[:-1])
    ctx.mark_non_differentiable(*output[3:])
    ctx.set_materialize_grads(False)


def _differentiate_compiled(ctx: Any, grads: list[Tensor | None]) -> tuple[Tensor | None, ...]:
    saved, rest = ctx.saved_tensors[: len(Saved._fields)], ctx.saved_tensors[len(Saved._fields) :]
    found = _gradients.op(*grads[:3], list(saved), *rest)
    needed = ctx.needs_input_grad[:7]
    return *(part if wanted else None for part, wanted in zip(found, needed, strict=True)), *(None,) * 7


_gradients = Operator("levels_backward", _levels_backward, _levels_backward_fake)
_levels = Operator("levels", _levels_forward, _levels_fake)
_levels.op.register_autograd(_differentiate_compiled, setup_context=_setup_context)
