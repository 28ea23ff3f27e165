"""Adam and AdamW whose learning rate and clipping a captured CUDA graph can read.

torch's own can do neither without a pass of its own over all gradients, and on a GPU its fused kernel reaches half of
the memory's bandwidth on a large matrix.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from coterie.loss.dispatch import HAS_TRITON

LARGE = 2**20  # weights from which a kernel of ours takes a parameter


class Adam(torch.optim.Optimizer):
    """p ← p - lr · m̂ / (√v̂ + ε), with running means m of g and v of g²; `decoupled`: AdamW's weight decay."""

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        decoupled: bool = False,
        eps: float = 1e-8,
    ) -> None:
        # "fused" has the counts of steps loaded onto the parameters' device.
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "eps": eps, "fused": True}
        super().__init__(params, defaults)
        self.decoupled = decoupled
        for group in self.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), device=group["params"][0].device)
            for parameter in group["params"]:
                self.state[parameter]["step"] = torch.zeros((), device=parameter.device)
                self.state[parameter]["exp_avg"] = torch.zeros_like(parameter)
                self.state[parameter]["exp_avg_sq"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None, scale: Tensor | None = None) -> None:  # type: ignore[override]
        """One update; waits for nothing. `scale` (): what the gradients of clipped groups are divided by."""
        assert closure is None
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            divisor = scale if group.get("clipped", True) else None
            torch._foreach_add_([self.state[parameter]["step"] for parameter in parameters], 1)
            small = [parameter for parameter in parameters if not _large(parameter)]
            if small:
                self._fused(group, small, divisor)
            for parameter in parameters:
                if _large(parameter):
                    self._streamed(group, parameter, divisor)

    def _fused(self, group: dict[str, Any], parameters: list[Tensor], scale: Tensor | None) -> None:
        states = [self.state[parameter] for parameter in parameters]
        update = torch._fused_adamw_ if self.decoupled else torch._fused_adam_
        beta1, beta2 = group["betas"]
        update(
            parameters, [parameter.grad for parameter in parameters if parameter.grad is not None],
            [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states], [],
            [state["step"] for state in states], lr=group["lr"], beta1=beta1, beta2=beta2,
            weight_decay=group["weight_decay"], eps=group["eps"], amsgrad=False, maximize=False, grad_scale=scale,
        )  # fmt: skip

    def _streamed(self, group: dict[str, Any], parameter: Tensor, scale: Tensor | None) -> None:
        from coterie_lab.kernels import adam

        state = self.state[parameter]
        assert parameter.grad is not None
        adam.update(
            parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"], group["lr"], state["step"], scale,
            group["betas"], group["eps"], group["weight_decay"], self.decoupled,
        )  # fmt: skip


def _large(parameter: Tensor) -> bool:
    return (
        HAS_TRITON and parameter.is_cuda and parameter.dtype == torch.float32 and parameter.numel() >= LARGE
        and parameter.is_contiguous()
    )  # fmt: skip
