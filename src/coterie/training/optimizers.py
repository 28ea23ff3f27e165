"""Optimizers whose learning rate can change inside a captured graph."""

from typing import Any

import torch
from torch import Tensor

from coterie.training.adagrad import Adagrad
from coterie.training.settings import TrainingSettings

# A parameter group says what differs from the settings: `factor` on the learning rate, `weight_decay`, `rowwise`.
Group = dict[str, Any]


def build(settings: TrainingSettings, groups: list[Group], device: torch.device) -> torch.optim.Optimizer:
    """The optimizer that the settings ask for, over groups of parameters."""
    prepared: list[Group] = []
    for group in groups:
        group = {"weight_decay": settings.weight_decay, **group}
        group["initial_lr"] = settings.learning_rate * group.pop("factor", 1.0)
        group["lr"] = group["initial_lr"]
        if settings.optimizer != "adagrad":
            group.pop("rowwise", None)  # one sum a row is Adagrad's
        prepared.append(group)
    prepared = [group for group in prepared if group["params"]]
    if settings.optimizer == "adagrad":
        return Adagrad(prepared, accumulator=settings.accumulator)
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    if device.type != "cuda":
        return kind(prepared)
    for group in prepared:
        group["lr"] = torch.tensor(group["lr"], device=device)
    return kind(prepared, fused=True, capturable=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Multiplies what each group starts from; in place where a graph may be reading it."""
    for group in optimizer.param_groups:
        rate = group["initial_lr"] * factor
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def load(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Takes over a state; the learning rates stay the tensors they are, on the device they are on."""
    rates = [group["lr"] for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
