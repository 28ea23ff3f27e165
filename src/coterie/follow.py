"""Counts an optimizer's updates, so that a training loop need not call `head.step()`."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from coterie import graphs
from coterie.metrics import Reorganization


def follow(
    optimizer: Optimizer,
    step: Callable[[Tensor | None], Reorganization | None],
    on_reorganize: Callable[[Reorganization], object] | None,
) -> RemovableHandle:
    """Calls `step` after each update, with what a GradScaler says of it; `on_reorganize` gets what it returns."""

    def count(skipped: Tensor | None = None) -> None:
        moved = step(skipped)
        if moved is not None and on_reorganize is not None:
            on_reorganize(moved)

    def updated(done: Optimizer, *_: Any) -> None:
        # A GradScaler calls a fused optimizer in any case and lets it see on the device whether to skip.
        skipped = getattr(done, "found_inf", None)
        # While a graph is recorded nothing is updated: each replay will be an update.
        if not graphs.after_replay(count):
            count(skipped)

    # A wrapper, such as Accelerate's, has no hooks of its own and calls the optimizer inside it.
    while isinstance(inside := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inside
    return optimizer.register_step_post_hook(updated)
