"""Opens single clusters, which sampling needs: log-probabilities of their words straight from the word matrix.

A cluster's logits fit into the registers of one program, so its words are read once and its softmax stays there.

Shapes: T rows, D width, V words, C clusters, S most words in a cluster, W clusters opened in each row.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.kernels.products import dense_rows
from coterie.kernels.sizes import power_of_two

TILE = 32768  # elements of the word matrix to hold in registers at a time


def open_clusters(
    hidden: Tensor, log_cluster: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor, offsets: Tensor,
    clusters: Tensor, capacity: int,
) -> Tensor:  # fmt: skip
    """log P(w|h) of the words of each row's `clusters` (T, W): (T, W, S) float32, -inf after a cluster's last word.

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


def _columns(block: int, width: int) -> int:
    return max(1, min(TILE // block, power_of_two(width), 128))


def _warps(block: int) -> int:
    return 4 if block <= 256 else 8


@triton.jit
def _log_probs(
    hidden_row, share, weight, weight_stride, bias, word, j, size,
    D: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """log P(w|h) of the words of one cluster in one row, (BLOCK_S,), -inf after the last; `share`: log P(c|h)."""
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
    # An empty cluster has only -inf: its maximum and its share are replaced by 0, as -inf minus -inf would be NaN.
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
