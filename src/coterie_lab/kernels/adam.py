"""Adam for one large parameter in a single kernel, which reads and writes everything once."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.kernels.sizes import n_tiles

BLOCK = 2048


def update(
    parameter: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, lr: Tensor, step: Tensor, scale: Tensor | None,
    betas: tuple[float, float], eps: float, weight_decay: float, decoupled: bool,
) -> None:  # fmt: skip
    """As `torch.optim.Adam`, AdamW if `decoupled`; lr, step and scale, by which the gradient is divided, are ()."""
    n = parameter.numel()
    with torch.cuda.device_of(parameter):
        _adam[(n_tiles(n, BLOCK),)](
            parameter, gradient.contiguous(), mean, square, lr, step, lr if scale is None else scale, n,
            betas[0], betas[1], math.log2(betas[0]), math.log2(betas[1]), eps, weight_decay,
            SCALED=scale is not None, DECAY=weight_decay != 0, DECOUPLED=decoupled, BLOCK=BLOCK,
        )  # fmt: skip


@triton.jit
def _adam(
    parameter, gradient, mean, square, lr, step, scale, n, beta1, beta2, log_beta1, log_beta2, eps, weight_decay,
    SCALED: tl.constexpr, DECAY: tl.constexpr, DECOUPLED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    p = tl.load(parameter + i, mask=inside)
    g = tl.load(gradient + i, mask=inside)
    m = tl.load(mean + i, mask=inside)
    v = tl.load(square + i, mask=inside)
    rate = tl.load(lr)
    # In float64, because 1 - 0.999ᵗ is mostly rounding error at first.
    t = tl.load(step).to(tl.float64)
    correct1 = (1.0 - tl.exp2(t * log_beta1)).to(tl.float32)
    correct2 = (1.0 - tl.exp2(t * log_beta2)).to(tl.float32)
    if SCALED:
        g = g / tl.load(scale)
    if DECAY:
        if DECOUPLED:
            p = p * (1.0 - rate * weight_decay)
        else:
            g = g + weight_decay * p
    m = beta1 * m + (1.0 - beta1) * g
    v = beta2 * v + (1.0 - beta2) * g * g
    p = p - rate / correct1 * m / (tl.sqrt(v / correct2) + eps)
    tl.store(parameter + i, p, mask=inside)
    tl.store(mean + i, m, mask=inside)
    tl.store(square + i, v, mask=inside)
