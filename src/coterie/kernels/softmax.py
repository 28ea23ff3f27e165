"""The softmax of both levels with the loss of the batch, and its gradient; each program has a few tokens.

`table` is that of `coterie.loss.grouping.Grouping`, `root_sizes` that of `coterie.clustering.partition.Partition`.

Shapes: T tokens, V words, C clusters, R columns of the root (clusters, then words that stand alone), S most words in a
cluster.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl
from torch import Tensor

from coterie.kernels.products import PADDING
from coterie.kernels.sizes import n_tiles, power_of_two

ROWS = 2  # tokens per program
BLOCK = 256  # logits of each token to hold in registers at a time
NUM_WARPS = 2
SUMMED = 1024  # tokens to add up at a time

LOWEST = tl.constexpr(-3.4028234663852886e38)  # initial value of a maximum; finite, since -inf minus -inf is NaN


def forward(
    root_logits: Tensor, shift: Tensor, logits: Tensor, table: Tensor, cluster_of: Tensor, offsets: Tensor,
    root_sizes: Tensor, output: Tensor, even: Tensor, loss: Tensor, saved: Tensor, sums: Tensor, tally: Tensor,
) -> None:  # fmt: skip
    """Writes log P of the targets to `output` (T,), its mean over all words' columns and the words of the target's
    cluster to `even` (T,) and the mean loss to `loss` (); adds the batch to `sums` (3,) and `tally` (5,).

    `root_logits` (T, R) without the biases `shift` (R,); `logits` (T, padded S), tokens sorted. `saved` (4 T + 1):
    log Z of both levels, sorted; log P of the target's column and log P(w|c, h); and a zero, to count programs.
    """
    n_tokens, n_columns = root_logits.shape
    _forward[(n_tiles(n_tokens, ROWS),)](
        root_logits, shift, logits, table, cluster_of, offsets, root_sizes, output, even, loss, saved, sums, tally,
        n_tokens,
        N_CLUSTERS=offsets.shape[0] - 2, N_COLUMNS=n_columns, N_WORDS=cluster_of.shape[0], STRIDE=logits.shape[1],
        ROWS=ROWS, BLOCK_C=_block(n_columns), BLOCK_S=_block(logits.shape[1]), SUMMED=SUMMED, num_warps=NUM_WARPS,
    )  # fmt: skip


def backward(
    grad_output: Tensor | None, grad_even: Tensor | None, grad_loss: Tensor | None,
    root_logits: Tensor, shift: Tensor, logits: Tensor, saved: Tensor,
    table: Tensor, cluster_of: Tensor, offsets: Tensor, root_sizes: Tensor, out_root: Tensor, out_word: Tensor,
) -> None:  # fmt: skip
    """Writes the gradients of both levels' logits, given those of `forward`'s three results, None for zero.

    `out_root` (T, R), zero for ignored tokens and empty columns; `out_word` (T, padded S), tokens sorted, zero from
    the cluster's last word to the end of its tile, and not written after that.
    """
    n_tokens, n_columns = root_logits.shape
    _backward[(n_tiles(n_tokens, ROWS),)](
        grad_output, grad_even, grad_loss, root_logits, shift, logits, saved,
        table, cluster_of, offsets, root_sizes, out_root, out_word, n_tokens,
        OUTPUT_STRIDE=0 if grad_output is None else grad_output.stride(0),
        EVEN_STRIDE=0 if grad_even is None else grad_even.stride(0),
        N_CLUSTERS=offsets.shape[0] - 2, N_COLUMNS=n_columns, N_WORDS=cluster_of.shape[0], STRIDE=logits.shape[1],
        TILE=PADDING, ROWS=ROWS, BLOCK_C=_block(n_columns), BLOCK_S=_block(logits.shape[1]), num_warps=NUM_WARPS,
    )  # fmt: skip


def _block(columns: int) -> int:
    return min(BLOCK, power_of_two(columns))


@triton.jit
def _rows(table, cluster_of, offsets, n_tokens, N_CLUSTERS: tl.constexpr, ROWS: tl.constexpr):
    """For ROWS tokens: the indices in sorted order, whether they are in range, the indices in the batch, whether they
    are used, the target's column in the root, the number of words in its cluster (0 if it stands alone), and the index
    of the target among them."""
    order, place, target = table, table + n_tokens, table + 2 * n_tokens + N_CLUSTERS + 2
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = i < n_tokens
    token = tl.load(order + i, mask=inside, other=0)
    word = tl.load(target + token, mask=inside, other=-1)
    used = word >= 0
    cluster = tl.load(cluster_of + word, mask=used, other=0)
    offset = tl.load(offsets + cluster, mask=used, other=0)
    size = tl.load(offsets + cluster + 1, mask=used, other=0) - offset
    own = tl.load(place + i, mask=used, other=0) - offset
    alone = cluster == N_CLUSTERS
    column = tl.where(alone, cluster + own, cluster)
    return i, inside, token, used, column, tl.where(alone, 0, size).to(tl.int32), own.to(tl.int32)


@triton.jit
def _load_words(at, j, size):
    """Logits of words j (B,), -inf after a cluster's last: (R, B)."""
    # The mask is by groups of four, which rows are padded to: a mask by element would prevent vectorised loads.
    x = tl.load(at, mask=(j // 4 * 4)[None, :] < size[:, None], other=0.0)
    return tl.where(j[None, :] < size[:, None], x, float("-inf"))


@triton.jit
def _accumulate(x, high, total):
    """Updates the maximum and the sum of exp(x - maximum), (R,) both, with a block of logits (R, B)."""
    higher = tl.maximum(high, tl.max(x, 1))
    return higher, total * tl.exp(high - higher) + tl.sum(tl.exp(x - higher[:, None]), 1)


@triton.jit
def _root_block(rows, shift, root_sizes, c, used, N_COLUMNS: tl.constexpr):
    """A block of logits (R, B), -inf where a token is left out or a column empty; where neither is; columns' sizes."""
    size = tl.load(root_sizes + c, mask=c < N_COLUMNS, other=0)
    counts = used[:, None] & (size > 0)[None, :]
    x = tl.load(rows[:, None] + c[None, :], mask=counts, other=float("-inf")).to(tl.float32)
    return x + tl.load(shift + c, mask=size > 0, other=0.0)[None, :], counts, size.to(tl.float32)


@triton.jit
def _forward(
    root_logits, shift, logits, table, cluster_of, offsets, root_sizes, output, even, loss, saved, sums, tally,
    n_tokens,
    N_CLUSTERS: tl.constexpr, N_COLUMNS: tl.constexpr, N_WORDS: tl.constexpr, STRIDE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr, SUMMED: tl.constexpr,
):  # fmt: skip
    i, inside, token, used, column, size, own = _rows(table, cluster_of, offsets, n_tokens, N_CLUSTERS, ROWS)

    rows = root_logits + token * N_COLUMNS
    high = tl.full((ROWS,), LOWEST, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    plain = tl.zeros((ROWS,), tl.float32)
    for first in range(0, N_COLUMNS, BLOCK_C):
        x, counts, words = _root_block(
            rows, shift, root_sizes, first + tl.arange(0, BLOCK_C), used, N_COLUMNS
        )  # fmt: skip
        high, total = _accumulate(x, high, total)
        plain += tl.sum(tl.where(counts, x, 0.0) * words[None, :], 1)
    log_total = high + tl.log(tl.where(used, total, 1.0))
    own_logit = tl.load(rows + column, mask=used, other=0.0).to(tl.float32)
    log_column = own_logit + tl.load(shift + column, mask=used, other=0.0) - log_total
    mean = plain / N_WORDS - log_total
    tl.store(saved + i, log_total, mask=used)

    rows = logits + i.to(tl.int64) * STRIDE
    high = tl.full((ROWS,), LOWEST, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    plain = tl.zeros((ROWS,), tl.float32)
    clustered = size > 0
    for first in range(0, tl.max(size, 0), BLOCK_S):
        j = first + tl.arange(0, BLOCK_S)
        x = _load_words(rows[:, None] + j[None, :], j, size)
        high, total = _accumulate(x, high, total)
        plain += tl.sum(tl.where(j[None, :] < size[:, None], x, 0.0), 1)
    log_total = high + tl.log(tl.where(clustered, total, 1.0))
    log_word = tl.load(rows + own, mask=clustered, other=0.0) - log_total
    mean += tl.where(clustered, plain / tl.maximum(size, 1) - log_total, 0.0)
    tl.store(saved + n_tokens + i, log_total, mask=clustered)

    log_column = tl.where(used, log_column, 0.0)
    log_word = tl.where(clustered, log_word, 0.0)
    tl.store(output + token, log_column + log_word, mask=inside)
    tl.store(even + token, tl.where(used, mean, 0.0), mask=inside)
    tl.store(saved + 2 * n_tokens + token, log_column, mask=inside)
    tl.store(saved + 3 * n_tokens + token, log_word, mask=inside)
    # The last program to get here finds all tokens done. It adds them up in a fixed order, for reproducible sums.
    tl.debug_barrier()
    done = tl.atomic_add(saved + 4 * n_tokens, 1.0, sem="acq_rel")
    if done == tl.num_programs(0) - 1:
        tl.debug_barrier()
        _sum_up(saved + 2 * n_tokens, table + 2 * n_tokens + N_CLUSTERS + 1, loss, sums, tally, n_tokens, SUMMED)


@triton.jit
def _sum_up(log_probs, n_used, loss, sums, tally, n_tokens, SUMMED: tl.constexpr):
    """Writes the mean loss from log P of the columns and log P(w|c, h), concatenated; updates sums and tally."""
    cluster = tl.zeros((SUMMED,), tl.float32)
    word = tl.zeros((SUMMED,), tl.float32)
    for first in range(0, n_tokens, SUMMED):
        token = first + tl.arange(0, SUMMED)
        cluster += tl.load(log_probs + token, mask=token < n_tokens, other=0.0, cache_modifier=".cg")
        word += tl.load(log_probs + n_tokens + token, mask=token < n_tokens, other=0.0, cache_modifier=".cg")
    of_cluster, of_word, n = tl.sum(cluster, 0), tl.sum(word, 0), tl.load(n_used)
    # A batch with nothing to predict has loss 0, not 0/0.
    mean = -(of_cluster + of_word) / tl.maximum(n, 1).to(tl.float32)
    tl.store(loss, mean)
    # In this form NaN, which compares false, counts as not finite.
    if tl.abs(mean) < float("inf"):
        tl.store(sums, tl.load(sums) + of_cluster.to(tl.float64))
        tl.store(sums + 1, tl.load(sums + 1) + of_word.to(tl.float64))
        tl.store(sums + 2, tl.load(sums + 2) + n.to(tl.float64))
        tl.store(tally + 4, tl.load(tally + 4) + n)
    else:
        tl.store(tally + 2, tl.load(tally + 2) + 1)
    tl.store(tally + 3, tl.load(tally + 3) + 1)


@triton.jit
def _gradient(pointer, token, used, STRIDE: tl.constexpr):
    """The gradient of a result for some tokens; zero without a pointer."""
    if pointer is None:
        gradient = tl.zeros(token.shape, tl.float32)
    else:
        gradient = tl.load(pointer + token * STRIDE, mask=used, other=0.0).to(tl.float32)
    return gradient


@triton.jit
def _backward(
    grad_output, grad_even, grad_loss, root_logits, shift, logits, saved,
    table, cluster_of, offsets, root_sizes, out_root, out_word, n_tokens,
    OUTPUT_STRIDE: tl.constexpr, EVEN_STRIDE: tl.constexpr, N_CLUSTERS: tl.constexpr, N_COLUMNS: tl.constexpr,
    N_WORDS: tl.constexpr, STRIDE: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_S: tl.constexpr,
):  # fmt: skip
    """The gradient of a log-softmax: g at the target, g_mean spread evenly, minus (g + g_mean) · probability."""
    i, inside, token, used, column, size, own = _rows(table, cluster_of, offsets, n_tokens, N_CLUSTERS, ROWS)
    g = _gradient(grad_output, token, used, OUTPUT_STRIDE)
    if grad_loss is not None:
        n_used = tl.load(table + 2 * n_tokens + N_CLUSTERS + 1)
        g -= tl.load(grad_loss).to(tl.float32) / tl.maximum(n_used, 1).to(tl.float32)
    g_mean = _gradient(grad_even, token, used, EVEN_STRIDE)

    log_total = tl.load(saved + i, mask=used, other=0.0)
    rows = token * N_COLUMNS
    for first in range(0, N_COLUMNS, BLOCK_C):
        c = first + tl.arange(0, BLOCK_C)
        x, counts, words = _root_block(root_logits + rows, shift, root_sizes, c, used, N_COLUMNS)
        p = tl.exp(x - log_total[:, None])
        gradient = tl.where(c[None, :] == column[:, None], g[:, None], 0.0) - (g + g_mean)[:, None] * p
        if grad_even is not None:
            gradient += g_mean[:, None] * (words / N_WORDS)[None, :]
        at = out_root + rows[:, None] + c[None, :]
        tl.store(at, tl.where(counts, gradient, 0.0), mask=inside[:, None] & (c < N_COLUMNS)[None, :])

    even = g_mean / tl.maximum(size, 1)
    log_total = tl.load(saved + n_tokens + i, mask=size > 0, other=0.0)
    rows = i.to(tl.int64) * STRIDE
    # Products read whole tiles, so there must be zeros up to the end of the last one.
    for first in range(0, (tl.max(size, 0) + TILE - 1) // TILE * TILE, BLOCK_S):
        j = first + tl.arange(0, BLOCK_S)
        counts = j[None, :] < size[:, None]
        x = _load_words(logits + rows[:, None] + j[None, :], j, size)
        p = tl.exp(x - log_total[:, None])
        gradient = tl.where(j[None, :] == own[:, None], g[:, None], 0.0) + even[:, None] - (g + g_mean)[:, None] * p
        at = out_word + rows[:, None] + j[None, :]
        tl.store(at, tl.where(counts, gradient, 0.0), mask=used[:, None] & (j < STRIDE)[None, :])
