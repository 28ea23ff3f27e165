"""One update: forward, backward, clip, optimizer. Nothing in it waits for the device."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from coterie_lab.training.optimizers import Optimizer


class Learner(Protocol):
    """What an update needs of what is trained."""

    @property
    def model(self) -> nn.Module: ...

    def loss(self, *batch: Tensor) -> Tensor:
        """The loss of a batch, a scalar."""
        ...

    def carry(self) -> None:
        """Takes over, in place, what the next batch starts from; called after the backward pass."""
        ...


@contextmanager
def precise(device: torch.device, dtype: torch.dtype | None) -> Iterator[None]:
    """Computes in `dtype` where that is safe; None: as the parameters are."""
    with torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        yield


class Update:
    """Trains on a batch, and adds its loss to a sum on the device."""

    def __init__(
        self,
        learner: Learner,
        optimizer: Optimizer,
        clip: float | None,
        device: torch.device,
        dtype: torch.dtype | None,
    ) -> None:
        self.learner, self.optimizer, self.clip, self.device, self.dtype = learner, optimizer, clip, device, dtype
        self.clipped = [p for group in optimizer.param_groups if group.get("clipped", True) for p in group["params"]]
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)

    def __call__(self, *batch: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with precise(self.device, self.dtype):
            loss = self.learner.loss(*batch)
        loss.backward()
        self.optimizer.step(scale=self._scale())
        self.learner.carry()
        self.loss_sum += loss.detach()

    def _scale(self) -> Tensor | None:
        """What clipping divides the gradients by, (): the optimizer does it as it reads them."""
        gradients = [parameter.grad for parameter in self.clipped if parameter.grad is not None]
        if self.clip is None or not gradients:
            return None
        return (nn.utils.get_total_norm(gradients, foreach=True) / self.clip).clamp(min=1.0)
