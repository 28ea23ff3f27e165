"""The matrix products of the word level: every token with the words of its target's cluster, rows gathered by index.

Tokens are sorted by cluster, and a tile of tokens never crosses into the next cluster, so each tile is an ordinary
product of gathered rows. The host does not know how many tiles a cluster needs, so the grid has the most possible: with
tiles of B tokens, cluster c owns the slots from starts[c] // B + c on, always enough for its ceil(n / B) tiles; the
program of an unused slot returns at once.

Tensor cores want at least 64 rows per tile. Therefore, in all three products, rows are words or columns, of which there
are many, and tokens, of which a cluster may have few, are the tile's columns.

`table` is that of `coterie.loss.grouping.Grouping`.

Shapes: T tokens, D width, V words, C clusters, S most words in a cluster.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from coterie.kernels.sizes import n_tiles, power_of_two


class Tiles(NamedTuple):
    """Tile sizes of a product; `tokens`, `words` and `columns` are powers of two, 16 at least."""

    tokens: int
    words: int
    columns: int
    num_warps: int
    num_stages: int


LOGITS = Tiles(tokens=32, words=64, columns=64, num_warps=4, num_stages=3)
GRAD_HIDDEN = Tiles(tokens=32, words=64, columns=64, num_warps=4, num_stages=3)
GRAD_WEIGHT = Tiles(tokens=32, words=64, columns=128, num_warps=4, num_stages=3)
CROWDED = 264  # programs of `grad_weight` that share the clusters with more tokens than a tile
PADDING = 64  # a multiple of all the `words` above, because tiles of logits are read and written whole
SUM_TOKENS, SUM_CLUSTERS = 128, 32  # tile sizes of the sums for the gradient of the cluster bias
BLOCK_CLUSTERS = 1024  # slots to compare at a time when a program looks for its cluster


def dense_rows(rows: Tensor) -> Tensor:
    """Returns rows with contiguous columns, which the kernels need; rows may have any stride."""
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def padded(capacity: int) -> int:
    """The width of a logits buffer for clusters of up to S words."""
    return n_tiles(capacity, PADDING) * PADDING


def logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, table: Tensor, words: Tensor, offsets: Tensor,
    out: Tensor, totals: Tensor,
) -> None:  # fmt: skip
    """Writes h_w · U^V + b of the words of each token's cluster to `out`, tokens sorted.

    `hidden` (T, D), `weight` (V, D), `bias` (V,), `out` (T, padded S) float32. It writes the words of the cluster and
    the rest of their last tile, and nothing for tokens without a cluster. It sets the last number of `totals` to zero,
    as a counter for the next kernel.
    """
    n_tokens, width = hidden.shape
    _logits[_slots(n_tokens, offsets, LOGITS), n_tiles(out.shape[1], LOGITS.words)](
        hidden, weight, bias, table, words, offsets, out, totals, n_tokens,
        HIDDEN_STRIDE=hidden.stride(0), WEIGHT_STRIDE=weight.stride(0), OUT_STRIDE=out.stride(0), D=width,
        **_constants(LOGITS, width), **_clusters(offsets),
    )  # fmt: skip


def grad_hidden(
    grad_logits: Tensor, weight: Tensor, table: Tensor, words: Tensor, offsets: Tensor, out: Tensor,
    add: bool,
) -> None:  # fmt: skip
    """Writes the gradient of h_w to `out` (T, D), zeros for tokens without a cluster; if `add`, adds it to `out`.

    `grad_logits` (T, padded S), tokens sorted, zero after the cluster's words; `weight` (V, D).
    """
    n_tokens, width = out.shape
    constants = _constants(GRAD_HIDDEN, width)
    _grad_hidden[_slots(n_tokens, offsets, GRAD_HIDDEN), n_tiles(width, constants["BLOCK_D"])](
        grad_logits, weight, table, words, offsets, out, n_tokens,
        GRAD_STRIDE=grad_logits.stride(0), WEIGHT_STRIDE=weight.stride(0), OUT_STRIDE=out.stride(0), D=width, ADD=add,
        **constants, **_clusters(offsets),
    )  # fmt: skip


def grad_weight(
    grad_logits: Tensor, hidden: Tensor, grad_root_logits: Tensor, table: Tensor, words: Tensor, offsets: Tensor,
    out: Tensor, out_bias: Tensor | None, out_cluster_bias: Tensor | None,
) -> None:  # fmt: skip
    """Writes the gradients of `weight` to `out` (V, D) and of `bias` to `out_bias` (V,), every row once, even if zero,
    but for the rows of words that stand alone.

    `grad_logits` (T, padded S), tokens sorted, zero after the cluster's words; `hidden` (T, D).
    To save a launch, it also writes the gradients of the root's biases, to `out_cluster_bias` (C,) and to the places of
    words that stand alone in `out_bias`: the sums of `grad_root_logits` (T, C + N), contiguous, over the tokens.
    """
    (n_tokens, width), n_clusters = hidden.shape, offsets.shape[0] - 2
    n_columns = grad_root_logits.shape[1]
    constants = _constants(GRAD_WEIGHT, width)
    word_tiles = n_tiles(grad_logits.shape[1], GRAD_WEIGHT.words)
    sum_tiles = 0 if out_cluster_bias is None else n_tiles(n_columns, SUM_CLUSTERS)
    _grad_weight[(sum_tiles + CROWDED + n_clusters * word_tiles,)](
        grad_logits, hidden, grad_root_logits, table, words, offsets, out, out_bias, out_cluster_bias,
        n_tokens, N_COLUMNS=n_columns,
        GRAD_STRIDE=grad_logits.stride(0), HIDDEN_STRIDE=hidden.stride(0), OUT_STRIDE=out.stride(0), D=width,
        WORD_TILES=word_tiles, COLUMN_TILES=n_tiles(width, constants["BLOCK_D"]), SUM_TILES=sum_tiles,
        CROWDED=CROWDED, SUM_T=SUM_TOKENS, SUM_C=SUM_CLUSTERS, **constants, **_clusters(offsets),
    )  # fmt: skip


def _slots(n_tokens: int, offsets: Tensor, tiles: Tiles) -> int:
    """The most slots possible, including those of the tokens that follow the last cluster's: their targets stand alone,
    or they are ignored."""
    return n_tokens // tiles.tokens + offsets.shape[0] - 1


def _clusters(offsets: Tensor) -> dict[str, int]:
    return {"N_CLUSTERS": offsets.shape[0] - 2, "BLOCK_C": min(BLOCK_CLUSTERS, power_of_two(offsets.shape[0]))}


def _constants(tiles: Tiles, width: int) -> dict[str, Any]:
    """Compile-time constants of a kernel; for a small width the tile is narrower."""
    columns = max(16, min(tiles.columns, power_of_two(width)))
    return {
        "BLOCK_T": tiles.tokens, "BLOCK_W": tiles.words, "BLOCK_D": columns,
        "num_warps": tiles.num_warps, "num_stages": tiles.num_stages,
    }  # fmt: skip


@triton.jit
def _find_tile(table, n_tokens, N_CLUSTERS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr):
    """This program's cluster (C for tokens without one), its first token and the end of the cluster's tokens."""
    slot, starts = tl.program_id(0), table + 2 * n_tokens
    begun = 0
    for first in range(0, N_CLUSTERS + 1, BLOCK_C):
        c = first + tl.arange(0, BLOCK_C)
        start = tl.load(starts + c, mask=c <= N_CLUSTERS, other=0).to(tl.int32)
        begun += tl.sum(((c <= N_CLUSTERS) & (start // BLOCK_T + c <= slot)).to(tl.int32), 0)
    cluster = begun - 1
    start = tl.load(starts + cluster).to(tl.int32)
    end = tl.load(starts + cluster + 1, mask=cluster < N_CLUSTERS, other=n_tokens).to(tl.int32)
    return cluster, start + (slot - start // BLOCK_T - cluster) * BLOCK_T, end


@triton.jit
def _logits(
    hidden, weight, bias, table, words, offsets, out, totals, n_tokens,
    HIDDEN_STRIDE: tl.constexpr, WEIGHT_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, D: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_D: tl.constexpr,
    N_CLUSTERS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """One program per slot of tokens and tile of words."""
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(totals + 4 * n_tokens, 0.0)
    cluster, first_token, end = _find_tile(table, n_tokens, N_CLUSTERS, BLOCK_T, BLOCK_C)
    if (cluster == N_CLUSTERS) | (first_token >= end):
        return
    offset = tl.load(offsets + cluster)
    size = (tl.load(offsets + cluster + 1) - offset).to(tl.int32)
    first_word = tl.program_id(1) * BLOCK_W
    if first_word >= size:
        return
    i = first_token + tl.arange(0, BLOCK_T)
    j = first_word + tl.arange(0, BLOCK_W)
    token = tl.load(table + i, mask=i < end, other=0)
    word = tl.load(words + offset + j, mask=j < size, other=0)
    hidden_rows = hidden + token[:, None] * HIDDEN_STRIDE
    weight_rows = weight + word[:, None] * WEIGHT_STRIDE
    acc = tl.zeros((BLOCK_W, BLOCK_T), tl.float32)
    for first in range(0, D, BLOCK_D):
        d = first + tl.arange(0, BLOCK_D)[None, :]
        h = tl.load(hidden_rows + d, mask=(i < end)[:, None] & (d < D), other=0.0)
        w = tl.load(weight_rows + d, mask=(j < size)[:, None] & (d < D), other=0.0).to(h.dtype)
        acc = tl.dot(w, tl.trans(h), acc, input_precision="ieee")
    if bias is not None:
        acc += tl.load(bias + word, mask=j < size, other=0.0).to(tl.float32)[:, None]
    tl.store(out + i.to(tl.int64)[None, :] * OUT_STRIDE + j[:, None], acc, mask=(i < end)[None, :])


@triton.jit
def _grad_hidden(
    grad_logits, weight, table, words, offsets, out, n_tokens,
    GRAD_STRIDE: tl.constexpr, WEIGHT_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, D: tl.constexpr,
    ADD: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_D: tl.constexpr,
    N_CLUSTERS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """One program per slot of tokens and tile of columns; it walks the cluster's words."""
    cluster, first_token, end = _find_tile(table, n_tokens, N_CLUSTERS, BLOCK_T, BLOCK_C)
    if first_token >= end:
        return
    # Tokens without a cluster follow the last one's: they have no words here, and so get zeros.
    inside = cluster < N_CLUSTERS
    offset = tl.load(offsets + cluster)
    size = tl.load(offsets + cluster + 1, mask=inside, other=0) - offset
    size = tl.where(inside, size, 0).to(tl.int32)
    i = first_token + tl.arange(0, BLOCK_T)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    token = tl.load(table + i, mask=i < end, other=0)
    grad_rows = grad_logits + i.to(tl.int64)[:, None] * GRAD_STRIDE
    acc = tl.zeros((BLOCK_D, BLOCK_T), tl.float32)
    for first in range(0, size, BLOCK_W):
        j = first + tl.arange(0, BLOCK_W)
        word = tl.load(words + offset + j, mask=j < size, other=0)
        g = tl.load(grad_rows + j[None, :], mask=(i < end)[:, None], other=0.0)
        # Rows after the cluster's last are masked: zero gradients alone would not stop a NaN in another word's vector.
        w = tl.load(
            weight + word[:, None] * WEIGHT_STRIDE + d[None, :], mask=(j < size)[:, None] & (d < D)[None, :], other=0.0
        ).to(g.dtype)
        acc = tl.dot(tl.trans(w), tl.trans(g), acc, input_precision="ieee")
    at = out + token[None, :] * OUT_STRIDE + d[:, None]
    mask = (i < end)[None, :] & (d < D)[:, None]
    if ADD:
        acc += tl.load(at, mask=mask, other=0.0).to(tl.float32)
    tl.store(at, acc, mask=mask)


@triton.jit
def _grad_weight(
    grad_logits, hidden, grad_root_logits, table, words, offsets, out, out_bias, out_cluster_bias, n_tokens,
    N_COLUMNS: tl.constexpr,
    GRAD_STRIDE: tl.constexpr, HIDDEN_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, D: tl.constexpr,
    WORD_TILES: tl.constexpr, COLUMN_TILES: tl.constexpr, SUM_TILES: tl.constexpr,
    CROWDED: tl.constexpr, SUM_T: tl.constexpr, SUM_C: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_D: tl.constexpr,
    N_CLUSTERS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The longest programs come first: sums over all tokens for the root's biases; then CROWDED programs that share the
    clusters with many tokens, tile by tile; then one program per tile of words of the other clusters."""
    program, order, starts = tl.program_id(0), table, table + 2 * n_tokens
    if out_cluster_bias is not None:
        if program < SUM_TILES:
            _sum_columns(
                grad_root_logits,
                out_cluster_bias,
                out_bias,
                words,
                offsets,
                n_tokens,
                N_CLUSTERS,
                N_COLUMNS,
                SUM_T,
                SUM_C,
            )
            return
        program -= SUM_TILES
    if program < CROWDED:
        tiles = WORD_TILES * (COLUMN_TILES + 1)
        for first in range(0, N_CLUSTERS, BLOCK_C):
            c = first + tl.arange(0, BLOCK_C)
            begin = tl.load(starts + c, mask=c < N_CLUSTERS, other=0)
            many = tl.load(starts + c + 1, mask=c < N_CLUSTERS, other=0) - begin > BLOCK_T
            up_to = tl.cumsum(many.to(tl.int32), 0)
            for item in range(program, tl.max(up_to, 0) * tiles, CROWDED):
                # The number of the cluster with item // tiles crowded clusters before it.
                cluster = first + tl.sum((up_to <= item // tiles).to(tl.int32), 0)
                tile = item % tiles
                _crowded_tile(
                    grad_logits, hidden, table, words, offsets, out, out_bias, n_tokens, cluster,
                    tile // (COLUMN_TILES + 1) * BLOCK_W, tile % (COLUMN_TILES + 1),
                    GRAD_STRIDE, HIDDEN_STRIDE, OUT_STRIDE, D, COLUMN_TILES, BLOCK_T, BLOCK_W, BLOCK_D,
                )  # fmt: skip
        return
    program -= CROWDED
    cluster = program // WORD_TILES
    j = (program % WORD_TILES) * BLOCK_W + tl.arange(0, BLOCK_W)
    start = tl.load(starts + cluster).to(tl.int32)
    end = tl.load(starts + cluster + 1).to(tl.int32)
    offset = tl.load(offsets + cluster)
    size = (tl.load(offsets + cluster + 1) - offset).to(tl.int32)
    if (end - start > BLOCK_T) | ((program % WORD_TILES) * BLOCK_W >= size):
        return
    i = start + tl.arange(0, BLOCK_T)
    word = tl.load(words + offset + j, mask=j < size, other=0)
    token = tl.load(order + i, mask=i < end, other=0)
    at = grad_logits + i.to(tl.int64)[:, None] * GRAD_STRIDE + j[None, :]
    g = tl.trans(tl.load(at, mask=(i < end)[:, None], other=0.0))
    if out_bias is not None:
        tl.store(out_bias + word, tl.sum(g.to(tl.float32), 1), mask=j < size)
    for column in range(0, D, BLOCK_D):
        d = (column + tl.arange(0, BLOCK_D))[None, :]
        h = tl.load(hidden + token[:, None] * HIDDEN_STRIDE + d, mask=(i < end)[:, None] & (d < D), other=0.0)
        acc = tl.dot(g, h, input_precision="ieee")
        tl.store(out + word[:, None] * OUT_STRIDE + d, acc, mask=(j < size)[:, None] & (d < D))


@triton.jit
def _crowded_tile(
    grad_logits, hidden, table, words, offsets, out, out_bias, n_tokens, cluster, first_word, column_tile,
    GRAD_STRIDE: tl.constexpr, HIDDEN_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, D: tl.constexpr,
    COLUMN_TILES: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """A tile of words and columns, summed over the cluster's tokens; the column tile after the last is the bias."""
    order, starts = table, table + 2 * n_tokens
    offset = tl.load(offsets + cluster)
    size = (tl.load(offsets + cluster + 1) - offset).to(tl.int32)
    start = tl.load(starts + cluster).to(tl.int32)
    end = tl.load(starts + cluster + 1).to(tl.int32)
    j = first_word + tl.arange(0, BLOCK_W)
    grad_columns = grad_logits + j[None, :]
    if first_word < size:
        word = tl.load(words + offset + j, mask=j < size, other=0)
        if column_tile < COLUMN_TILES:
            d = (column_tile * BLOCK_D + tl.arange(0, BLOCK_D))[None, :]
            acc = tl.zeros((BLOCK_W, BLOCK_D), tl.float32)
            for first in range(start, end, BLOCK_T):
                i = first + tl.arange(0, BLOCK_T)
                token = tl.load(order + i, mask=i < end, other=0)
                g = tl.load(grad_columns + i.to(tl.int64)[:, None] * GRAD_STRIDE, mask=(i < end)[:, None], other=0.0)
                h = tl.load(hidden + token[:, None] * HIDDEN_STRIDE + d, mask=(i < end)[:, None] & (d < D), other=0.0)
                acc = tl.dot(tl.trans(g), h, acc, input_precision="ieee")
            tl.store(out + word[:, None] * OUT_STRIDE + d, acc, mask=(j < size)[:, None] & (d < D))
        else:
            if out_bias is not None:
                sums = tl.zeros((BLOCK_T, BLOCK_W), tl.float32)
                for first in range(start, end, BLOCK_T):
                    i = (first + tl.arange(0, BLOCK_T))[:, None]
                    sums += tl.load(grad_columns + i.to(tl.int64) * GRAD_STRIDE, mask=i < end, other=0.0).to(tl.float32)
                tl.store(out_bias + word, tl.sum(sums, 0), mask=j < size)


@triton.jit
def _sum_columns(
    x, out_cluster, out_word, words, offsets, n_rows, N_CLUSTERS: tl.constexpr, N_COLUMNS: tl.constexpr,
    SUM_T: tl.constexpr, SUM_C: tl.constexpr,
):  # fmt: skip
    """Sums SUM_C columns of x (rows, columns), contiguous; program 0 has the first ones."""
    c = tl.program_id(0) * SUM_C + tl.arange(0, SUM_C)
    sums = tl.zeros((SUM_T, SUM_C), tl.float32)
    for first in tl.range(0, n_rows, SUM_T, num_stages=4):
        i = (first + tl.arange(0, SUM_T))[:, None]
        mask = (i < n_rows) & (c < N_COLUMNS)[None, :]
        sums += tl.load(x + i.to(tl.int64) * N_COLUMNS + c[None, :], mask=mask, other=0.0).to(tl.float32)
    total = tl.sum(sums, 0)
    tl.store(out_cluster + c, total, mask=c < N_CLUSTERS)
    if out_word is not None:
        at = tl.load(offsets + N_CLUSTERS) + c - N_CLUSTERS
        alone = (c >= N_CLUSTERS) & (at < tl.load(offsets + N_CLUSTERS + 1))
        tl.store(out_word + tl.load(words + at, mask=alone, other=0), total, mask=alone)
