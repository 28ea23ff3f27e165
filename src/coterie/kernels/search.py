"""Kernels of the search on a GPU: logits of all words, the best word of every cluster, the words of some clusters.

Each function is one launch, and none synchronises, which would take longer than most of the kernels. A cluster's logits
fit into the registers of one program, so they are read once and their softmax stays there.

The words that stand alone are one more cluster here, the last, with the logits that they have in the root (`collapse`).

Shapes: T rows, D width, V words, C clusters, R columns of the root, S most words in a cluster; Q questions of B rows
(hypotheses) each, and P pairs of a hypothesis and a cluster per question.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.kernels.products import dense_rows
from coterie.kernels.sizes import n_tiles, power_of_two

LARGEST = 4096  # the most words of a cluster, and the most clusters, that fit into registers
FEW_ROWS = 64  # up to so many rows, the product with all words is limited by reading the word matrix
WORDS, COLUMNS = 64, 64  # tile sizes for few rows
MANY = 128  # rows and words of a tile for more rows
PROGRAMS, MOST_EACH = 4096, 16  # with more programs than this, each takes several clusters, up to MOST_EACH


def fits(capacity: int, n_columns: int) -> bool:
    """Whether the kernels can search clusters of up to S words and R columns of the root."""
    return max(capacity, n_columns) <= LARGEST


def shares(logits: Tensor, root_sizes: Tensor) -> Tensor:
    """log P of the root's columns, -inf for empty ones: (T, R) → (T, R) float32; `root_sizes` (R,): in `Partition`."""
    logits = dense_rows(logits)
    out = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    if out.numel():
        block = power_of_two(logits.shape[1])
        with torch.cuda.device_of(logits):
            _shares[(logits.shape[0],)](
                logits, logits.stride(0), root_sizes, out, logits.shape[1],
                BLOCK_C=block, num_warps=4 if block <= 1024 else 8,
            )  # fmt: skip
    return out


def collapse(root: Tensor, root_sizes: Tensor, n_clusters: int) -> Tensor:
    """The root's logits with those of the words that stand alone summed up in one: (T, R) → (T, C + 1) float32."""
    root = dense_rows(root)
    (n_rows, n_columns), n_own = root.shape, root.shape[1] - n_clusters
    out = torch.empty(n_rows, n_clusters + 1, dtype=torch.float32, device=root.device)
    if n_rows:
        blocks = power_of_two(n_clusters), power_of_two(n_own)
        with torch.cuda.device_of(root):
            _collapse[(n_rows,)](
                root, root.stride(0), root_sizes, out, n_clusters, n_columns, BLOCK_C=blocks[0], BLOCK_N=blocks[1],
                num_warps=4 if max(blocks) <= 1024 else 8,
            )  # fmt: skip
    return out


def logits_in_order(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor, cluster_of: Tensor, offsets: Tensor,
    root: Tensor, log_cluster: Tensor, bar: Tensor | None,
) -> Tensor:  # fmt: skip
    """The logits of all words, in the partition's order: (T, D), (V, D) → (T, V) float32.

    `root` (T, R): the words that stand alone have theirs from there. `log_cluster` (T, C + 1), `bar` (T,): words whose
    cluster is below every row's bar are skipped; their values are undefined.
    """
    hidden, weight, root = dense_rows(hidden), dense_rows(weight), dense_rows(root)
    (n_rows, width), n_words = hidden.shape, weight.shape[0]
    out = torch.empty(n_rows, n_words, dtype=torch.float32, device=hidden.device)
    if n_rows:
        # Not in float32: such large tiles do not fit into the shared memory of every GPU.
        many = n_rows > FEW_ROWS and hidden.dtype != torch.float32
        tile = MANY if many else max(16, power_of_two(min(n_rows, FEW_ROWS)))
        block = MANY if many else WORDS
        row_tiles = n_tiles(n_rows, tile)
        with torch.cuda.device_of(hidden):
            _logits_in_order[(row_tiles * n_tiles(n_words, block),)](
                hidden, hidden.stride(0), weight, weight.stride(0), bias, words, cluster_of, offsets,
                root, root.stride(0), log_cluster, log_cluster.stride(0), bar, out, n_rows, n_words, row_tiles,
                N_CLUSTERS=offsets.shape[0] - 2, D=width, BLOCK_T=tile, BLOCK_W=block, BLOCK_D=COLUMNS,
                num_warps=8 if many else 4, num_stages=3 if many else 4,
            )  # fmt: skip
    return out


def peaks(
    logits: Tensor, cluster_logits: Tensor, offsets: Tensor, capacity: int, bar: Tensor | None, score: Tensor | None
) -> Tensor:
    """log P(w|h) of the most probable word of every cluster: (T, C) float32.

    `logits` (T, V) from `logits_in_order`; `cluster_logits` (T, C), which must be log P(c|h) if there is a bar.
    -inf for a cluster that is empty or below its row's `bar` (T,). `score` (T,) is added; -inf marks an unused row.
    """
    cluster_logits = dense_rows(cluster_logits)
    n_rows, n_clusters = cluster_logits.shape
    out = torch.empty(n_rows, n_clusters, dtype=torch.float32, device=logits.device)
    if n_rows:
        each = max(1, min(MOST_EACH, n_rows * n_clusters // PROGRAMS))
        block = power_of_two(capacity)
        with torch.cuda.device_of(logits):
            _peaks[(n_rows * n_tiles(n_clusters, each),)](
                logits, cluster_logits, cluster_logits.stride(0), bar, score, offsets, out,
                logits.shape[1], n_clusters, each,
                BLOCK_C=power_of_two(n_clusters), BLOCK_S=block, num_warps=_few_warps(block),
            )  # fmt: skip
    return out


def members(
    logits: Tensor, cluster_logits: Tensor, pairs: Tensor, words: Tensor, offsets: Tensor, capacity: int,
    bar: Tensor | None, score: Tensor | None, n_hypotheses: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """log P(w|h), as in `peaks`, and the words of the clusters that each question needs: both (Q, P · S).

    `pairs` (Q, P): b · C + c for hypothesis b, whose row is q · B + b, and cluster c. Words are returned as b · V + w.
    After a cluster's last word: -inf, and any word.
    """
    cluster_logits, pairs = dense_rows(cluster_logits), dense_rows(pairs)
    n_questions, n_pairs = pairs.shape
    values = torch.empty(n_questions, n_pairs * capacity, dtype=torch.float32, device=logits.device)
    found = torch.empty(n_questions, n_pairs * capacity, dtype=torch.int64, device=logits.device)
    if n_questions:
        block, n_clusters = power_of_two(capacity), cluster_logits.shape[1]
        with torch.cuda.device_of(logits):
            _members[(n_questions * n_pairs,)](
                logits, cluster_logits, cluster_logits.stride(0), pairs, pairs.stride(0), bar, score, words, offsets,
                values, found, logits.shape[1], n_clusters, n_pairs, capacity, n_hypotheses,
                BLOCK_C=power_of_two(n_clusters), BLOCK_S=block, num_warps=_few_warps(block),
            )  # fmt: skip
    return values, found


def normalize(logits: Tensor, log_cluster: Tensor, words: Tensor, offsets: Tensor, capacity: int) -> Tensor:
    """log P(w|h) of all words in vocabulary order, (T, V), from `logits_in_order` (T, V) and `log_cluster` (T, C)."""
    n_rows, n_clusters = log_cluster.shape
    out = torch.empty_like(logits)
    if n_rows:
        block = power_of_two(capacity)
        with torch.cuda.device_of(logits):
            _normalize[(n_rows * n_clusters,)](
                logits, log_cluster, log_cluster.stride(0), words, offsets, out, logits.shape[1], n_clusters,
                BLOCK_S=block, num_warps=max(1, min(8, block // 256)),
            )  # fmt: skip
    return out


def _few_warps(block: int) -> int:
    return 1 if block <= 1024 else 4


@triton.jit
def _clusters(logits, offsets, n_clusters, BLOCK_C: tl.constexpr):
    """The logits of a row's clusters, -inf for empty ones, (BLOCK_C,), and log Z."""
    c = tl.arange(0, BLOCK_C)
    inside = c < n_clusters
    filled = tl.load(offsets + c + 1, mask=inside, other=0) > tl.load(offsets + c, mask=inside, other=0)
    x = tl.load(logits + c, mask=filled, other=-float("inf")).to(tl.float32)
    top = tl.max(x, 0)
    return x, top + tl.log(tl.sum(tl.exp(x - top), 0))


@triton.jit
def _shares(logits, row_stride, root_sizes, out, n_columns, BLOCK_C: tl.constexpr):
    """One program per row."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK_C)
    filled = tl.load(root_sizes + c, mask=c < n_columns, other=0) > 0
    x = tl.load(logits + row * row_stride + c, mask=filled, other=-float("inf")).to(tl.float32)
    top = tl.max(x, 0)
    log_total = top + tl.log(tl.sum(tl.exp(x - top), 0))
    tl.store(out + row * n_columns + c, x - log_total, mask=c < n_columns)


@triton.jit
def _collapse(
    root, row_stride, root_sizes, out, n_clusters, n_columns, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """One program per row."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK_C)
    x = tl.load(root + row * row_stride + c, mask=c < n_clusters, other=0.0).to(tl.float32)
    tl.store(out + row * (n_clusters + 1) + c, x, mask=c < n_clusters)
    n = n_clusters + tl.arange(0, BLOCK_N)
    filled = tl.load(root_sizes + n, mask=n < n_columns, other=0) > 0
    y = tl.load(root + row * row_stride + n, mask=filled, other=-float("inf")).to(tl.float32)
    top = tl.max(y, 0)
    top = tl.where(top == -float("inf"), 0.0, top)  # without such words, -inf minus -inf would be NaN
    tl.store(out + row * (n_clusters + 1) + n_clusters, top + tl.log(tl.sum(tl.exp(y - top), 0)))


@triton.jit
def _logits_in_order(
    hidden, hidden_stride, weight, weight_stride, bias, words, cluster_of, offsets, root, root_stride,
    log_cluster, cluster_stride, bar, out, n_rows, n_words, row_tiles,
    N_CLUSTERS: tl.constexpr, D: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program per tile of rows and tile of words; programs that share words are neighbours, for the cache."""
    i = (tl.program_id(0) % row_tiles) * BLOCK_T + tl.arange(0, BLOCK_T)
    j = (tl.program_id(0) // row_tiles) * BLOCK_W + tl.arange(0, BLOCK_W)
    there = (i < n_rows)[None, :] & (j < n_words)[:, None]
    word = tl.load(words + j, mask=j < n_words, other=0)
    row = i.to(tl.int64)
    if bar is not None:
        cluster = tl.load(cluster_of + word, mask=j < n_words, other=0)
        share = tl.load(log_cluster + row[None, :] * cluster_stride + cluster[:, None], mask=there, other=0.0)
        below = share < tl.load(bar + i, mask=i < n_rows, other=0.0)[None, :]
        if tl.max(tl.max((there & (below == 0)).to(tl.int32), 0), 0) == 0:
            return
    hidden_rows = hidden + row[:, None] * hidden_stride
    weight_rows = weight + word[:, None] * weight_stride
    acc = tl.zeros((BLOCK_W, BLOCK_T), tl.float32)
    for first in range(0, D, BLOCK_D):
        d = first + tl.arange(0, BLOCK_D)[None, :]
        h = tl.load(hidden_rows + d, mask=(i < n_rows)[:, None] & (d < D), other=0.0)
        w = tl.load(weight_rows + d, mask=(j < n_words)[:, None] & (d < D), other=0.0).to(h.dtype)
        acc = tl.dot(w, tl.trans(h), acc, input_precision="ieee")
    if bias is not None:
        acc += tl.load(bias + word, mask=j < n_words, other=0.0).to(tl.float32)[:, None]
    column = j - tl.load(offsets + N_CLUSTERS) + N_CLUSTERS
    alone = there & (column >= N_CLUSTERS)[:, None]
    in_root = tl.load(root + row[None, :] * root_stride + column[:, None], mask=alone, other=0.0).to(tl.float32)
    tl.store(out + row[None, :] * n_words + j[:, None], tl.where(alone, in_root, acc), mask=there)


@triton.jit
def _in_cluster(
    logits, cluster_logits, cluster_stride, bar, score, offsets, log_total, row, cluster, j, n_words,
    BLOCK_S: tl.constexpr,
):  # fmt: skip
    """One cluster in one row: log P(w|c, h) (BLOCK_S,), log P(c|h) plus score, the offset and the number of its words,
    which is 0 if the cluster is below the bar or the row is unused."""
    offset = tl.load(offsets + cluster)
    size = tl.load(offsets + cluster + 1) - offset
    share = tl.load(cluster_logits + row * cluster_stride + cluster).to(tl.float32) - log_total
    if bar is not None:
        size = tl.where(share < tl.load(bar + row), 0, size)
    if score is not None:
        own = tl.load(score + row).to(tl.float32)
        size = tl.where(own == -float("inf"), 0, size)
        share += own
    x = tl.load(logits + row * n_words + offset + j, mask=j < size, other=-float("inf"))
    # Without words, -inf minus -inf would be NaN.
    top = tl.where(size > 0, tl.max(x, 0), 0.0)
    total = tl.where(size > 0, tl.sum(tl.exp(x - top), 0), 1.0)
    return x - top - tl.log(total), tl.where(size > 0, share, 0.0), offset, size


@triton.jit
def _norm(cluster_logits, bar, offsets, n_clusters, BLOCK_C: tl.constexpr):
    """log Z of a row's clusters; 0 with a bar, which has to be compared with the same numbers to the last bit."""
    if bar is None:
        _x, log_total = _clusters(cluster_logits, offsets, n_clusters, BLOCK_C)
    else:
        log_total = 0.0
    return log_total


@triton.jit(do_not_specialize=["each"])
def _peaks(
    logits, cluster_logits, cluster_stride, bar, score, offsets, out, n_words, n_clusters, each,
    BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """One program per row and `each` clusters."""
    groups = (n_clusters + each - 1) // each
    row = (tl.program_id(0) // groups).to(tl.int64)
    first = tl.program_id(0) % groups * each
    log_total = _norm(cluster_logits + row * cluster_stride, bar, offsets, n_clusters, BLOCK_C)
    j = tl.arange(0, BLOCK_S)
    for cluster in range(first, tl.minimum(first + each, n_clusters)):
        log_p, share, _offset, _size = _in_cluster(
            logits, cluster_logits, cluster_stride, bar, score, offsets, log_total, row, cluster, j, n_words, BLOCK_S
        )
        tl.store(out + row * n_clusters + cluster, tl.max(log_p, 0) + share)


@triton.jit(do_not_specialize=["n_pairs", "n_hypotheses"])
def _members(
    logits, cluster_logits, cluster_stride, pairs, pair_stride, bar, score, words, offsets, values, found,
    n_words, n_clusters, n_pairs, capacity, n_hypotheses, BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """One program per question and pair."""
    question = (tl.program_id(0) // n_pairs).to(tl.int64)
    nth = tl.program_id(0) % n_pairs
    pair = tl.load(pairs + question * pair_stride + nth)
    hypothesis = pair // n_clusters
    cluster = pair % n_clusters
    row = question * n_hypotheses + hypothesis
    log_total = _norm(cluster_logits + row * cluster_stride, bar, offsets, n_clusters, BLOCK_C)
    j = tl.arange(0, BLOCK_S)
    log_p, share, offset, size = _in_cluster(
        logits, cluster_logits, cluster_stride, bar, score, offsets, log_total, row, cluster, j, n_words, BLOCK_S
    )
    # Added in this order, rounding never puts a word above its cluster, nor above a bar that its cluster is below.
    at = (question * n_pairs + nth) * capacity + j
    tl.store(values + at, log_p + share, mask=j < capacity)
    word = tl.load(words + offset + j, mask=j < size, other=0)
    tl.store(found + at, word + hypothesis * n_words, mask=j < capacity)


@triton.jit
def _normalize(
    logits, log_cluster, cluster_stride, words, offsets, out, n_words, n_clusters, BLOCK_S: tl.constexpr
):  # fmt: skip
    """One program per row and cluster."""
    row = (tl.program_id(0) // n_clusters).to(tl.int64)
    cluster = tl.program_id(0) % n_clusters
    j = tl.arange(0, BLOCK_S)
    log_p, share, offset, size = _in_cluster(
        logits, log_cluster, cluster_stride, None, None, offsets, 0.0, row, cluster, j, n_words, BLOCK_S
    )
    word = tl.load(words + offset + j, mask=j < size, other=0)
    tl.store(out + row * n_words + word, log_p + share, mask=j < size)
