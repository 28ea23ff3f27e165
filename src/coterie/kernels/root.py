"""What a batch multiplies with, prepared in one launch: the root's vectors and biases, and the maps of both levels.

A word that stands alone has its column's vector in its row of `weight`. The backward writes that row into the one
gradient of `weight` there is; the products of the word level leave it out.

Shapes: D width, V words, C clusters, N places for words that stand alone, R = C + N columns.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.kernels.sizes import power_of_two
from coterie.loss.levels import step_of

BLOCK = 1024  # numbers of a row to copy at a time


def gather(
    cluster_weight: Tensor, cluster_bias: Tensor | None, prior: Tensor | None, weight: Tensor, bias: Tensor | None,
    words: Tensor, offsets: Tensor, n_own: int, dtype: torch.dtype, projection: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The vectors of all columns, (R, D) in `dtype`, zeros in places that are empty; their biases, (R,) float32; and
    `coterie.loss.levels.maps` in `dtype`, empty without a `projection` (2D, D).

    `cluster_weight` (C, D), `cluster_bias` and `prior` (C,), `weight` (V, D), `bias` (V,); `words` (V,) and `offsets`
    (C + 2,) are the partition's, `n_own` its N.
    """
    (n_clusters, width), device = cluster_weight.shape, weight.device
    n_columns, n_maps = n_clusters + n_own, 0 if projection is None else projection.shape[0]
    rows = torch.empty(n_columns + n_maps, width, dtype=dtype, device=device)
    shift = torch.empty(n_columns, dtype=torch.float32, device=device)
    _gather[(n_columns + n_maps,)](
        cluster_weight, cluster_bias, prior, weight, bias, words, offsets, projection, rows, shift,
        N_CLUSTERS=n_clusters, N_COLUMNS=n_columns, CLUSTER_STRIDE=cluster_weight.stride(0),
        WEIGHT_STRIDE=weight.stride(0), MAP_STRIDE=0 if projection is None else projection.stride(0), D=width,
        STEP=step_of(width), BLOCK_D=min(BLOCK, power_of_two(width)),
    )  # fmt: skip
    return rows[:n_columns], shift, rows[n_columns:]


def scatter(grad_root: Tensor, words: Tensor, offsets: Tensor, out_cluster: Tensor, out: Tensor) -> None:
    """Writes the gradients of the columns (R, D) to `out_cluster` (C, D) and to rows of `out` (V, D)."""
    n_columns, width = grad_root.shape
    _scatter[(n_columns,)](
        grad_root, words, offsets, out_cluster, out,
        N_CLUSTERS=out_cluster.shape[0], ROOT_STRIDE=grad_root.stride(0), OUT_STRIDE=out.stride(0), D=width,
        BLOCK_D=min(BLOCK, power_of_two(width)),
    )  # fmt: skip


@triton.jit
def _word(words, offsets, column, N_CLUSTERS: tl.constexpr):
    """The word that stands alone in a column, and whether there is one."""
    at = tl.load(offsets + N_CLUSTERS) + column - N_CLUSTERS
    there = (column >= N_CLUSTERS) & (at < tl.load(offsets + N_CLUSTERS + 1))
    return tl.load(words + at, mask=there, other=0), there


@triton.jit
def _gather(
    cluster_weight, cluster_bias, prior, weight, bias, words, offsets, projection, rows, shift,
    N_CLUSTERS: tl.constexpr, N_COLUMNS: tl.constexpr, CLUSTER_STRIDE: tl.constexpr, WEIGHT_STRIDE: tl.constexpr,
    MAP_STRIDE: tl.constexpr, D: tl.constexpr, STEP: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program per column, then one per row of the maps."""
    row = tl.program_id(0).to(tl.int64)
    if projection is not None:  # noqa: SIM102 - decided when the kernel is compiled, the next when it runs
        if row >= N_COLUMNS:
            of_map = row - N_COLUMNS
            for first in range(0, D, BLOCK_D):
                d = first + tl.arange(0, BLOCK_D)
                moved = tl.load(projection + of_map * MAP_STRIDE + d, mask=d < D, other=0.0).to(tl.float32) * STEP
                tl.store(rows + row * D + d, moved + (d == of_map % D).to(tl.float32), mask=d < D)
            return
    word, alone = _word(words, offsets, row, N_CLUSTERS)
    clustered = row < N_CLUSTERS
    b = 0.0
    if cluster_bias is not None:
        b += tl.load(cluster_bias + row, mask=clustered, other=0.0).to(tl.float32)
    if prior is not None:
        b += tl.load(prior + row, mask=clustered, other=0.0)
    if bias is not None:
        b += tl.load(bias + word, mask=alone, other=0.0).to(tl.float32)
    tl.store(shift + row, b)
    for first in range(0, D, BLOCK_D):
        d = first + tl.arange(0, BLOCK_D)
        x = tl.load(cluster_weight + row * CLUSTER_STRIDE + d, mask=clustered & (d < D), other=0.0)
        y = tl.load(weight + word * WEIGHT_STRIDE + d, mask=alone & (d < D), other=0.0)
        tl.store(rows + row * D + d, tl.where(alone, y.to(tl.float32), x.to(tl.float32)), mask=d < D)


@triton.jit
def _scatter(
    grad_root, words, offsets, out_cluster, out,
    N_CLUSTERS: tl.constexpr, ROOT_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, D: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program per column."""
    column = tl.program_id(0).to(tl.int64)
    word, alone = _word(words, offsets, column, N_CLUSTERS)
    for first in range(0, D, BLOCK_D):
        d = first + tl.arange(0, BLOCK_D)
        g = tl.load(grad_root + column * ROOT_STRIDE + d, mask=d < D, other=0.0)
        tl.store(out_cluster + column * D + d, g, mask=(column < N_CLUSTERS) & (d < D))
        tl.store(out + word * OUT_STRIDE + d, g, mask=alone & (d < D))
