"""One update: forward, backward, clip, optimizer. Nothing in it waits for the device."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn


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
        optimizer: torch.optim.Optimizer,
        clip: float | None,
        device: torch.device,
        dtype: torch.dtype | None,
    ) -> None:
        self.learner, self.optimizer, self.clip, self.device, self.dtype = learner, optimizer, clip, device, dtype
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)

    def __call__(self, *batch: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with precise(self.device, self.dtype):
            loss = self.learner.loss(*batch)
        loss.backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.learner.model.parameters(), self.clip, foreach=True)
        self.optimizer.step()
        self.learner.carry()
        self.loss_sum += loss.detach()
