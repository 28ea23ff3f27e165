"""What a search on a GPU is made of: the clusters' probabilities, and those of the words of some clusters, or of all.

Every kernel is one launch and none waits for the host, which takes longer to ask than most of them to answer. A
cluster's logits fit into the registers of one program: a cluster is read once and its softmax never leaves.

Shapes: T rows, D width, V words, C clusters, S most words in a cluster, W clusters opened in each row.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.kernels.products import dense_rows
from coterie.kernels.sizes import n_tiles, power_of_two

LARGEST = 4096  # words of a cluster that fit, and clusters
TILE = 32768  # elements of the word matrix in registers at a time
FEW_ROWS = 64  # whose product with all words is no more than a walk through the word matrix
WORDS, COLUMNS = 64, 64  # a tile of that walk


def fits(capacity: int, n_clusters: int) -> bool:
    """Whether C clusters of up to S words can be searched here."""
    return max(capacity, n_clusters) <= LARGEST


def shares(logits: Tensor, offsets: Tensor) -> Tensor:
    """log P(c|h), -inf for empty clusters: (T, C) → (T, C) float32; `offsets` (C + 1,) are the partition's."""
    logits = dense_rows(logits)
    n_rows, n_clusters = logits.shape
    out = torch.empty(n_rows, n_clusters, dtype=torch.float32, device=logits.device)
    if n_rows:
        block = power_of_two(n_clusters)
        with torch.cuda.device_of(logits):
            _shares[(n_rows,)](
                logits, logits.stride(0), offsets, out, n_clusters, BLOCK_C=block, num_warps=4 if block <= 1024 else 8
            )
    return out


def all_logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """The logits of all words, without bias, of a few rows: (T, D), (V, D) → (T, V) float32."""
    hidden, weight = dense_rows(hidden), dense_rows(weight)
    (n_rows, width), n_words = hidden.shape, weight.shape[0]
    out = torch.empty(n_rows, n_words, dtype=torch.float32, device=hidden.device)
    if n_rows:
        rows = max(16, power_of_two(n_rows))
        with torch.cuda.device_of(hidden):
            _all_logits[(n_tiles(n_words, WORDS),)](
                hidden, hidden.stride(0), weight, weight.stride(0), out, n_rows, n_words,
                D=width, BLOCK_T=rows, BLOCK_W=WORDS, BLOCK_D=COLUMNS, num_warps=4, num_stages=4,
            )  # fmt: skip
    return out


def open_clusters(
    hidden: Tensor, log_cluster: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor, offsets: Tensor,
    clusters: Tensor, capacity: int,
) -> Tensor:  # fmt: skip
    """log P(w|h) of the words of each row's clusters (T, W): (T, W, S) float32, -inf beyond a cluster's last word.

    `hidden` (T, D), `log_cluster` (T, C), `weight` (V, D), `bias` (V,); `words` (V,) and `offsets` (C + 1,) are the
    partition's.
    """
    hidden, weight, clusters = dense_rows(hidden), dense_rows(weight), clusters.contiguous()
    (n_rows, width), opened = hidden.shape, clusters.shape[1]
    out = torch.empty(n_rows, opened, capacity, dtype=torch.float32, device=hidden.device)
    if out.numel():
        block = power_of_two(capacity)
        with torch.cuda.device_of(hidden):
            _open[(n_rows * opened,)](
                hidden, hidden.stride(0), log_cluster, log_cluster.stride(0), weight, weight.stride(0), bias, words,
                offsets, clusters, out, opened, capacity,
                D=width, BLOCK_S=block, BLOCK_D=_columns(block, width), num_warps=_warps(block),
            )  # fmt: skip
    return out


def open_above(
    hidden: Tensor, log_cluster: Tensor, bar: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor,
    offsets: Tensor, capacity: int,
) -> Tensor:  # fmt: skip
    """log P(w|h) of all words whose cluster is not below its row's bar (T,), else -inf: (T, V) float32, the words in
    the partition's order.

    `hidden` (T, D), `log_cluster` (T, C), `weight` (V, D), `bias` (V,).
    """
    hidden, weight = dense_rows(hidden), dense_rows(weight)
    (n_rows, n_clusters), width = log_cluster.shape, hidden.shape[1]
    out = torch.empty(n_rows, words.shape[0], dtype=torch.float32, device=hidden.device)
    if n_rows:
        block = power_of_two(capacity)
        with torch.cuda.device_of(hidden):
            _open_above[(n_rows * n_clusters,)](
                hidden, hidden.stride(0), log_cluster, log_cluster.stride(0), bar, bar.stride(0),
                weight, weight.stride(0), bias, words, offsets, out, n_clusters, words.shape[0],
                D=width, BLOCK_S=block, BLOCK_D=_columns(block, width), num_warps=_warps(block),
            )  # fmt: skip
    return out


def normalize(
    logits: Tensor, log_cluster: Tensor, bias: Tensor | None, words: Tensor, offsets: Tensor, capacity: int
) -> Tensor:
    """log P(w|h) of all words, (T, V), from their logits without bias, (T, V) float32, which are overwritten."""
    n_rows, n_clusters = log_cluster.shape
    if n_rows:
        block = power_of_two(capacity)
        with torch.cuda.device_of(logits):
            _normalize[(n_rows * n_clusters,)](
                logits, logits.stride(0), log_cluster, log_cluster.stride(0), bias, words, offsets, n_clusters,
                BLOCK_S=block, num_warps=max(1, min(8, block // 256)),
            )  # fmt: skip
    return logits


def _columns(block: int, width: int) -> int:
    return max(1, min(TILE // block, power_of_two(width), 128))


def _warps(block: int) -> int:
    return 4 if block <= 256 else 8


@triton.jit
def _shares(logits, row_stride, offsets, out, n_clusters, BLOCK_C: tl.constexpr):
    """One program per row."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK_C)
    inside = c < n_clusters
    filled = tl.load(offsets + c + 1, mask=inside, other=0) > tl.load(offsets + c, mask=inside, other=0)
    x = tl.load(logits + row * row_stride + c, mask=filled, other=-float("inf")).to(tl.float32)
    top = tl.max(x, 0)
    total = tl.sum(tl.exp(x - top), 0)
    tl.store(out + row * n_clusters + c, x - top - tl.log(total), mask=inside)


@triton.jit
def _all_logits(
    hidden, hidden_stride, weight, weight_stride, out, n_rows, n_words,
    D: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program per tile of words, for all rows."""
    i = tl.arange(0, BLOCK_T)
    j = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)
    hidden_rows = hidden + i.to(tl.int64)[:, None] * hidden_stride
    weight_rows = weight + j.to(tl.int64)[:, None] * weight_stride
    acc = tl.zeros((BLOCK_W, BLOCK_T), tl.float32)
    for first in range(0, D, BLOCK_D):
        d = first + tl.arange(0, BLOCK_D)[None, :]
        h = tl.load(hidden_rows + d, mask=(i < n_rows)[:, None] & (d < D), other=0.0)
        w = tl.load(weight_rows + d, mask=(j < n_words)[:, None] & (d < D), other=0.0).to(h.dtype)
        acc = tl.dot(w, tl.trans(h), acc, input_precision="ieee")
    at = out + i.to(tl.int64)[None, :] * n_words + j[:, None]
    tl.store(at, acc, mask=(i < n_rows)[None, :] & (j < n_words)[:, None])


@triton.jit
def _log_probs(
    hidden_row, share, weight, weight_stride, bias, word, j, size,
    D: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """log P(w|h) of the words of one cluster in one row, (BLOCK_S,), -inf beyond the last; `share`: log P(c|h)."""
    acc = tl.zeros((BLOCK_S,), tl.float32)
    for first in range(0, D, BLOCK_D):
        d = first + tl.arange(0, BLOCK_D)
        h = tl.load(hidden_row + d, mask=d < D, other=0.0)
        w = tl.load(
            weight + word[:, None] * weight_stride + d[None, :], mask=(j < size)[:, None] & (d < D)[None, :], other=0.0
        ).to(h.dtype)
        acc += tl.sum(w.to(tl.float32) * h.to(tl.float32)[None, :], 1)
    if bias is not None:
        acc += tl.load(bias + word, mask=j < size, other=0.0).to(tl.float32)
    acc = tl.where(j < size, acc, -float("inf"))
    top = tl.max(acc, 0)
    # An empty cluster has neither words nor a share: nothing but -inf is left of it.
    top = tl.where(size > 0, top, 0.0)
    total = tl.sum(tl.exp(acc - top), 0)
    return acc - top - tl.log(tl.maximum(total, 1e-30)) + tl.where(size > 0, share, 0.0)


@triton.jit
def _open(
    hidden, hidden_stride, log_cluster, cluster_stride, weight, weight_stride, bias, words, offsets, clusters,
    out, opened, capacity, D: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program per row and cluster."""
    pair = tl.program_id(0)
    row = (pair // opened).to(tl.int64)
    cluster = tl.load(clusters + pair)
    offset = tl.load(offsets + cluster)
    size = tl.load(offsets + cluster + 1) - offset
    share = tl.load(log_cluster + row * cluster_stride + cluster)
    j = tl.arange(0, BLOCK_S)
    word = tl.load(words + offset + j, mask=j < size, other=0)
    log_p = _log_probs(
        hidden + row * hidden_stride, share, weight, weight_stride, bias, word, j, size, D, BLOCK_S, BLOCK_D
    )
    tl.store(out + pair.to(tl.int64) * capacity + j, log_p, mask=j < capacity)


@triton.jit
def _open_above(
    hidden, hidden_stride, log_cluster, cluster_stride, bar, bar_stride, weight, weight_stride, bias, words, offsets,
    out, n_clusters, n_words, D: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program per row and cluster."""
    row = (tl.program_id(0) // n_clusters).to(tl.int64)
    cluster = tl.program_id(0) % n_clusters
    offset = tl.load(offsets + cluster)
    size = tl.load(offsets + cluster + 1) - offset
    share = tl.load(log_cluster + row * cluster_stride + cluster)
    j = tl.arange(0, BLOCK_S)
    at = out + row * n_words + offset + j
    if share < tl.load(bar + row * bar_stride):
        tl.store(at, tl.full((BLOCK_S,), -float("inf"), tl.float32), mask=j < size)
        return
    # Also where either is not a number: that shows in the answer, as it does in the dense one.
    word = tl.load(words + offset + j, mask=j < size, other=0)
    log_p = _log_probs(
        hidden + row * hidden_stride, share, weight, weight_stride, bias, word, j, size, D, BLOCK_S, BLOCK_D
    )
    tl.store(at, log_p, mask=j < size)


@triton.jit
def _normalize(
    logits, row_stride, log_cluster, cluster_stride, bias, words, offsets, n_clusters, BLOCK_S: tl.constexpr
):  # fmt: skip
    """One program per row and cluster."""
    row = (tl.program_id(0) // n_clusters).to(tl.int64)
    cluster = tl.program_id(0) % n_clusters
    offset = tl.load(offsets + cluster)
    size = tl.load(offsets + cluster + 1) - offset
    if size == 0:
        return
    j = tl.arange(0, BLOCK_S)
    word = tl.load(words + offset + j, mask=j < size, other=0)
    at = logits + row * row_stride + word
    x = tl.load(at, mask=j < size, other=-float("inf"))
    if bias is not None:
        x += tl.load(bias + word, mask=j < size, other=0.0).to(tl.float32)
    top = tl.max(x, 0)
    total = tl.sum(tl.exp(x - top), 0)
    share = tl.load(log_cluster + row * cluster_stride + cluster).to(tl.float32)
    tl.store(at, x - top - tl.log(total) + share, mask=j < size)
