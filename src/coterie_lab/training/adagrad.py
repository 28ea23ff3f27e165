"""Adagrad in one pass over each parameter, with a start for its sums and, for embeddings, one sum a row.

torch's own has neither a row-wise form nor a learning rate and clipping that a captured CUDA graph can read.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT


class Adagrad(torch.optim.Optimizer):
    """p ← p - lr · g / (√Σg² + ε); with `rowwise`, Σ is over the mean of g² in each row.

    `accumulator`: where Σ starts. At 0 every weight's first step is a full learning rate, whatever its gradient.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.1,
        accumulator: float = 0.0,
        weight_decay: float = 0.0,
        rowwise: bool = False,
        eps: float = 1e-10,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "rowwise": rowwise, "eps": eps})
        for group in self.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), device=group["params"][0].device)
            for parameter in group["params"]:
                shape = (parameter.shape[0], *[1] * (parameter.ndim - 1)) if group["rowwise"] else parameter.shape
                start = torch.full(shape, accumulator, dtype=parameter.dtype, device=parameter.device)
                self.state[parameter]["sum"] = start
        # The fused kernel asks for a count of steps, for a decay that is not used here.
        self._steps: dict[torch.device, Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None, scale: Tensor | None = None) -> None:  # type: ignore[override]
        """One update; waits for nothing. `scale` (): what the gradients of clipped groups are divided by."""
        assert closure is None
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                divisor = scale if group.get("clipped", True) else None
                (self._by_row if group["rowwise"] else self._by_weight)(group, parameters, divisor)

    def _by_weight(self, group: dict[str, Any], parameters: list[Tensor], scale: Tensor | None) -> None:
        device = parameters[0].device
        step = self._steps.setdefault(device, torch.ones((), device=device))
        torch._fused_adagrad_(
            parameters, [parameter.grad for parameter in parameters if parameter.grad is not None],
            [self.state[parameter]["sum"] for parameter in parameters], [step] * len(parameters),
            lr=group["lr"], lr_decay=0.0, weight_decay=group["weight_decay"], eps=group["eps"], maximize=False,
            grad_scale=scale,
        )  # fmt: skip

    def _by_row(self, group: dict[str, Any], parameters: list[Tensor], scale: Tensor | None) -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            gradient = parameter.grad if scale is None else parameter.grad / scale
            if group["weight_decay"]:
                gradient = gradient + group["weight_decay"] * parameter
            total = self.state[parameter]["sum"]  # (rows, 1)
            total.add_(torch.linalg.vector_norm(gradient, dim=-1, keepdim=True).square() / gradient.shape[-1])
            parameter.addcmul_(gradient, group["lr"] / (total.sqrt() + group["eps"]), value=-1)
