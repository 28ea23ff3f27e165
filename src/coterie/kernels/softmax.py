"""Both levels' softmax, and its gradient, a few tokens a program.

Shapes: T tokens, C clusters, S most words in a cluster.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl
from torch import Tensor

from coterie.kernels.products import PADDING
from coterie.kernels.sizes import n_tiles, power_of_two

ROWS = 2  # tokens one program has
BLOCK = 256  # logits of each that are in registers at a time
NUM_WARPS = 2

LOWEST = tl.constexpr(-3.4028234663852886e38)  # a maximum's start: finite, for -inf minus -inf is not a number


def forward(
    cluster_logits: Tensor, logits: Tensor, order: Tensor, place: Tensor, target: Tensor, cluster_of: Tensor,
    offsets: Tensor, log_cluster: Tensor, log_word: Tensor, mean_cluster: Tensor, mean_word: Tensor,
    log_totals: Tensor,
) -> None:  # fmt: skip
    """Writes log P(c|h) and log P(w|c, h) of the targets and their means over clusters and words, each (T,).

    `cluster_logits` (T, C); `logits` (T, padded S), tokens in order; `log_totals` (2, T): log Z of both, in order.
    """
    n_tokens, n_clusters = cluster_logits.shape
    _forward[(n_tiles(n_tokens, ROWS),)](
        cluster_logits, logits, logits.stride(0), order, place, target, cluster_of, offsets,
        log_cluster, log_word, mean_cluster, mean_word, log_totals, n_tokens, n_clusters,
        ROWS=ROWS, BLOCK_C=_block(n_clusters), BLOCK_S=_block(logits.shape[1]), num_warps=NUM_WARPS,
    )  # fmt: skip


def backward(
    grad_cluster: Tensor | None, grad_word: Tensor | None, grad_mean_cluster: Tensor | None,
    grad_mean_word: Tensor | None, cluster_logits: Tensor, logits: Tensor, log_totals: Tensor, order: Tensor,
    place: Tensor, target: Tensor, cluster_of: Tensor, offsets: Tensor, out_cluster: Tensor, out_word: Tensor,
) -> None:  # fmt: skip
    """Writes the gradients of both levels' logits, from those of `forward`'s four results, (T,) each; None: zero.

    `out_cluster` (T, C), zero for tokens left out and empty clusters; `out_word` (T, padded S), tokens in order, zero
    from the cluster's last word to the end of its tile, and not written beyond.
    """
    n_tokens, n_clusters = cluster_logits.shape
    grads = (grad_cluster, grad_word, grad_mean_cluster, grad_mean_word)
    _backward[(n_tiles(n_tokens, ROWS),)](
        *grads, *(0 if grad is None else grad.stride(0) for grad in grads),
        cluster_logits, logits, logits.stride(0), log_totals, order, place, target, cluster_of, offsets,
        out_cluster, out_word, out_word.stride(0), n_tokens, n_clusters, logits.shape[1],
        TILE=PADDING, ROWS=ROWS, BLOCK_C=_block(n_clusters), BLOCK_S=_block(logits.shape[1]), num_warps=NUM_WARPS,
    )  # fmt: skip


def _block(columns: int) -> int:
    return min(BLOCK, power_of_two(columns))


@triton.jit
def _rows(order, place, target, cluster_of, offsets, n_tokens, ROWS: tl.constexpr):
    """For ROWS tokens: their places in order and in the batch, whether they are used, the target's cluster, how many
    words it has, and which of them the target is."""
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = i < n_tokens
    token = tl.load(order + i, mask=inside, other=0)
    word = tl.load(target + token, mask=inside, other=-1)
    used = word >= 0
    cluster = tl.load(cluster_of + word, mask=used, other=0)
    offset = tl.load(offsets + cluster, mask=used, other=0)
    size = tl.load(offsets + cluster + 1, mask=used, other=0) - offset
    own = tl.load(place + i, mask=used, other=0) - offset
    return i, inside, token, used, cluster, size.to(tl.int32), own.to(tl.int32)


@triton.jit
def _filled(offsets, c, n_clusters):
    """Whether clusters have words."""
    inside = c < n_clusters
    return tl.load(offsets + c + 1, mask=inside, other=0) > tl.load(offsets + c, mask=inside, other=0)


@triton.jit
def _load_words(at, j, size):
    """Logits of words j (B,) where clusters have that many, -inf elsewhere: (R, B)."""
    # Fours, which rows are padded to, are read or left whole: a mask at any width would make every load a single one.
    x = tl.load(at, mask=(j // 4 * 4)[None, :] < size[:, None], other=0.0)
    return tl.where(j[None, :] < size[:, None], x, float("-inf"))


@triton.jit
def _take_in(x, counts, high, total, plain):
    """A block of logits (R, B) more: the highest, the sum of exp(x - highest) and the sum of x, (R,) each."""
    higher = tl.maximum(high, tl.max(x, 1))
    total = total * tl.exp(high - higher) + tl.sum(tl.exp(x - higher[:, None]), 1)
    return higher, total, plain + tl.sum(tl.where(counts, x, 0.0), 1)


@triton.jit
def _forward(
    cluster_logits, logits, logits_stride, order, place, target, cluster_of, offsets,
    log_cluster, log_word, mean_cluster, mean_word, log_totals, n_tokens, n_clusters,
    ROWS: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    i, inside, token, used, cluster, size, own = _rows(order, place, target, cluster_of, offsets, n_tokens, ROWS)

    rows = cluster_logits + token * n_clusters
    high = tl.full((ROWS,), LOWEST, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    plain = tl.zeros((ROWS,), tl.float32)
    n_filled = 0
    for first in range(0, n_clusters, BLOCK_C):
        c = first + tl.arange(0, BLOCK_C)
        filled = _filled(offsets, c, n_clusters)
        counts = used[:, None] & filled[None, :]
        x = tl.load(rows[:, None] + c[None, :], mask=counts, other=float("-inf")).to(tl.float32)
        high, total, plain = _take_in(x, counts, high, total, plain)
        n_filled += tl.sum(filled.to(tl.int32), 0)
    log_total = high + tl.log(tl.where(used, total, 1.0))
    log_p = tl.load(rows + cluster, mask=used, other=0.0).to(tl.float32) - log_total
    tl.store(log_cluster + token, tl.where(used, log_p, 0.0), mask=inside)
    tl.store(mean_cluster + token, tl.where(used, plain / n_filled - log_total, 0.0), mask=inside)
    tl.store(log_totals + i, log_total, mask=used)

    rows = logits + i.to(tl.int64) * logits_stride
    high = tl.full((ROWS,), LOWEST, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    plain = tl.zeros((ROWS,), tl.float32)
    for first in range(0, tl.max(size, 0), BLOCK_S):
        j = first + tl.arange(0, BLOCK_S)
        counts = j[None, :] < size[:, None]
        x = _load_words(rows[:, None] + j[None, :], j, size)
        high, total, plain = _take_in(x, counts, high, total, plain)
    log_total = high + tl.log(tl.where(used, total, 1.0))
    log_p = tl.load(rows + own, mask=used, other=0.0) - log_total
    tl.store(log_word + token, tl.where(used, log_p, 0.0), mask=inside)
    tl.store(mean_word + token, tl.where(used, plain / tl.maximum(size, 1) - log_total, 0.0), mask=inside)
    tl.store(log_totals + n_tokens + i, log_total, mask=used)


@triton.jit
def _gradient(pointer, stride, token, used):
    """A result's gradient for some tokens; no pointer: zero."""
    if pointer is None:
        gradient = tl.zeros(token.shape, tl.float32)
    else:
        gradient = tl.load(pointer + token * stride, mask=used, other=0.0).to(tl.float32)
    return gradient


# A gradient may be one number expanded, stride 0, or (T,), stride 1: not worth a compilation each.
@triton.jit(do_not_specialize=["stride_cluster", "stride_word", "stride_mean_cluster", "stride_mean_word"])
def _backward(
    grad_cluster, grad_word, grad_mean_cluster, grad_mean_word,
    stride_cluster, stride_word, stride_mean_cluster, stride_mean_word,
    cluster_logits, logits, logits_stride, log_totals, order, place, target, cluster_of, offsets,
    out_cluster, out_word, out_stride, n_tokens, n_clusters, capacity,
    TILE: tl.constexpr, ROWS: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Of a log-softmax: g at the target, g_mean / n everywhere, less (g + g_mean) times the probability."""
    i, inside, token, used, cluster, size, own = _rows(order, place, target, cluster_of, offsets, n_tokens, ROWS)

    g = _gradient(grad_cluster, stride_cluster, token, used)
    g_mean = _gradient(grad_mean_cluster, stride_mean_cluster, token, used)
    even = g_mean
    if grad_mean_cluster is not None:
        n_filled = 0
        for first in range(0, n_clusters, BLOCK_C):
            n_filled += tl.sum(_filled(offsets, first + tl.arange(0, BLOCK_C), n_clusters).to(tl.int32), 0)
        even = g_mean / n_filled
    log_total = tl.load(log_totals + i, mask=used, other=0.0)
    rows = token * n_clusters
    for first in range(0, n_clusters, BLOCK_C):
        c = first + tl.arange(0, BLOCK_C)
        counts = used[:, None] & _filled(offsets, c, n_clusters)[None, :]
        x = tl.load(cluster_logits + rows[:, None] + c[None, :], mask=counts, other=float("-inf")).to(tl.float32)
        p = tl.exp(x - log_total[:, None])
        gradient = tl.where(c[None, :] == cluster[:, None], g[:, None], 0.0) + even[:, None] - (g + g_mean)[:, None] * p
        at = out_cluster + rows[:, None] + c[None, :]
        tl.store(at, tl.where(counts, gradient, 0.0), mask=inside[:, None] & (c < n_clusters)[None, :])

    g = _gradient(grad_word, stride_word, token, used)
    g_mean = _gradient(grad_mean_word, stride_mean_word, token, used)
    even = g_mean / tl.maximum(size, 1)
    log_total = tl.load(log_totals + n_tokens + i, mask=used, other=0.0)
    rows = i.to(tl.int64)
    # Products read whole tiles: up to the end of the last one there have to be zeros.
    for first in range(0, (tl.max(size, 0) + TILE - 1) // TILE * TILE, BLOCK_S):
        j = first + tl.arange(0, BLOCK_S)
        counts = j[None, :] < size[:, None]
        x = _load_words(logits + rows[:, None] * logits_stride + j[None, :], j, size)
        p = tl.exp(x - log_total[:, None])
        gradient = tl.where(j[None, :] == own[:, None], g[:, None], 0.0) + even[:, None] - (g + g_mean)[:, None] * p
        at = out_word + rows[:, None] * out_stride + j[None, :]
        tl.store(at, tl.where(counts, gradient, 0.0), mask=used[:, None] & (j < capacity)[None, :])
