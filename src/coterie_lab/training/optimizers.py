"""Adam, AdamW and Adagrad whose learning rate and clipping can change inside a captured CUDA graph.

torch.optim's classes hold one `grad_scale` for all parameter groups, have no row-wise Adagrad, and on a GPU their fused
Adam reaches half of the memory's bandwidth on a large matrix. The updates themselves are torch.optim's functions.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam
from torch.optim.optimizer import ParamsT

from coterie.loss.dispatch import HAS_TRITON
from coterie_lab.training.settings import Schedule, TrainingSettings

LARGE = 2**20  # weights from which Adam updates a parameter with our kernel

# A parameter group says what differs from the settings: `factor` on the learning rate, `weight_decay`, `rowwise`,
# `clipped` (whether its gradients count in the norm that is clipped; they do unless it says no).
Group = dict[str, Any]


class Optimizer(torch.optim.Optimizer):
    """An optimizer whose learning rate is a tensor on the device, and that scales gradients as it reads them."""

    def __init__(self, params: ParamsT, lr: float, **defaults: Any) -> None:
        # "fused" makes load_state_dict put the counts of steps onto the parameters' device.
        super().__init__(params, {"lr": lr, "fused": True, **defaults})
        for group in self.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), device=group["params"][0].device)
            for parameter in group["params"]:
                self.state[parameter]["step"] = torch.zeros((), device=parameter.device)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None, scale: Tensor | None = None) -> None:  # type: ignore[override]
        """One update, without a synchronisation. `scale` (): the gradients of clipped groups are divided by it."""
        assert closure is None
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self.update(group, parameters, scale if group.get("clipped", True) else None)

    def update(self, group: Group, parameters: list[Tensor], scale: Tensor | None) -> None:
        """Updates the parameters of a group that have gradients."""
        raise NotImplementedError

    def held(self, parameters: list[Tensor], name: str) -> list[Tensor]:
        """The state called `name` of every parameter."""
        return [self.state[parameter][name] for parameter in parameters]

    def set_learning_rate(self, factor: float) -> None:
        """Sets learning rates to `factor` times the initial ones; in-place, because a CUDA graph may read them."""
        for group in self.param_groups:
            group["lr"].fill_(group["initial_lr"] * factor)

    def resume(self, state: dict[str, Any]) -> None:
        """Loads a state into the existing learning-rate tensors, which stay on their device."""
        rates = [group["lr"] for group in self.param_groups]
        self.load_state_dict(state)
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate


class Adam(Optimizer):
    """p ← p - lr · m̂ / (√v̂ + ε), with running means m of g and v of g²; `decoupled`: AdamW's weight decay."""

    betas = (0.9, 0.999)

    def __init__(
        self, params: ParamsT, lr: float = 1e-3, weight_decay: float = 0.0, decoupled: bool = False, eps: float = 1e-8
    ) -> None:
        super().__init__(params, lr, weight_decay=weight_decay, eps=eps)
        self.decoupled = decoupled
        for parameter, state in self.state.items():
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)

    def update(self, group: Group, parameters: list[Tensor], scale: Tensor | None) -> None:
        small = [parameter for parameter in parameters if not is_large(parameter)]
        beta1, beta2 = self.betas
        adam(
            small, [parameter.grad for parameter in small if parameter.grad is not None],
            self.held(small, "exp_avg"), self.held(small, "exp_avg_sq"), [], self.held(small, "step"),
            fused=True, grad_scale=scale, decoupled_weight_decay=self.decoupled, amsgrad=False, beta1=beta1,
            beta2=beta2, lr=group["lr"], weight_decay=group["weight_decay"], eps=group["eps"], maximize=False,
        )  # fmt: skip
        for parameter in filter(is_large, parameters):
            from coterie_lab.kernels import adam as kernel

            state = self.state[parameter]
            state["step"].add_(1)
            assert parameter.grad is not None
            kernel.update(
                parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"], group["lr"], state["step"], scale,
                self.betas, group["eps"], group["weight_decay"], self.decoupled,
            )  # fmt: skip


def is_large(parameter: Tensor) -> bool:
    """Whether our kernel can update a parameter, and is faster for it."""
    usual = parameter.is_cuda and parameter.dtype == torch.float32 and parameter.is_contiguous()
    return HAS_TRITON and usual and parameter.numel() >= LARGE


class Adagrad(Optimizer):
    """p ← p - lr · g / (√Σg² + ε); with `rowwise`, Σ is over the mean of g² in each row.

    `accumulator`: where Σ starts. At 0 every weight's first step is a full learning rate, whatever its gradient.
    """

    eps = 1e-10

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.1,
        accumulator: float = 0.0,
        weight_decay: float = 0.0,
        rowwise: bool = False,
    ) -> None:
        super().__init__(params, lr, weight_decay=weight_decay, rowwise=rowwise)
        for group in self.param_groups:
            for parameter in group["params"]:
                shape = (parameter.shape[0], *[1] * (parameter.ndim - 1)) if group["rowwise"] else parameter.shape
                start = torch.full(shape, accumulator, dtype=parameter.dtype, device=parameter.device)
                self.state[parameter]["sum"] = start

    def update(self, group: Group, parameters: list[Tensor], scale: Tensor | None) -> None:
        if not group["rowwise"]:
            adagrad(
                parameters, [parameter.grad for parameter in parameters if parameter.grad is not None],
                self.held(parameters, "sum"), self.held(parameters, "step"), fused=True, grad_scale=scale,
                lr=group["lr"], weight_decay=group["weight_decay"], lr_decay=0.0, eps=self.eps, maximize=False,
            )  # fmt: skip
            return
        for parameter, total in zip(parameters, self.held(parameters, "sum"), strict=True):  # (rows, D), (rows, 1)
            assert parameter.grad is not None
            gradient = parameter.grad if scale is None else parameter.grad / scale
            if group["weight_decay"]:
                gradient = gradient + group["weight_decay"] * parameter
            total.add_(torch.linalg.vector_norm(gradient, dim=-1, keepdim=True).square() / gradient.shape[-1])
            parameter.addcmul_(gradient, group["lr"] / (total.sqrt() + self.eps), value=-1)


def build(settings: TrainingSettings, groups: list[Group]) -> Optimizer:
    """The optimizer of the settings for groups of parameters."""
    prepared: list[Group] = []
    for group in filter(lambda group: group["params"], groups):
        rate = settings.learning_rate * group.get("factor", 1.0)
        prepared.append({"weight_decay": settings.weight_decay, **group, "initial_lr": rate, "lr": rate})
    if settings.optimizer == "adagrad":
        return Adagrad(prepared, accumulator=settings.accumulator)
    return Adam(prepared, decoupled=settings.optimizer == "adamw")


def factor(schedule: Schedule, step: int, total: int, steps_per_epoch: int, warmup: int = 0) -> float:
    """The factor of the learning rate at update `step`, counted from 0, of `total`."""
    rise = min(1.0, (step + 1) / warmup) if warmup else 1.0
    if schedule == "halving":
        # Halved after every epoch that ends in the second half: with 5 epochs 1, 1, 1, 1/2, 1/4.
        epochs = -(-total // steps_per_epoch)
        return rise * 0.5 ** max(0, step // steps_per_epoch + 1 - (epochs + 1) // 2)
    if schedule == "constant":
        return rise
    done = min(1.0, max(0, step - warmup) / max(1, total - warmup))
    return rise * (0.5 * (1 + math.cos(math.pi * done)) if schedule == "cosine" else 1 - done)
