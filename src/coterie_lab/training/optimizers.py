"""Optimizers whose learning rate can change inside a captured graph."""

from typing import Any

from coterie_lab.training.adagrad import Adagrad
from coterie_lab.training.adam import Adam
from coterie_lab.training.settings import TrainingSettings

# A parameter group says what differs from the settings: `factor` on the learning rate, `weight_decay`, `rowwise`,
# `clipped` (whether its gradients count in the norm that is clipped; they do unless it says no).
Group = dict[str, Any]
Optimizer = Adagrad | Adam


def build(settings: TrainingSettings, groups: list[Group]) -> Optimizer:
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
    return Adam(prepared, decoupled=settings.optimizer == "adamw")


def set_learning_rate(optimizer: Optimizer, factor: float) -> None:
    """Multiplies what each group starts from; in place, for a graph may be reading it."""
    for group in optimizer.param_groups:
        group["lr"].fill_(group["initial_lr"] * factor)


def load(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Takes over a state; the learning rates stay the tensors they are, on the device they are on."""
    rates = [group["lr"] for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
