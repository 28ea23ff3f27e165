"""One update: forward, backward, clipping, optimizer; it never synchronises."""

import torch
from torch import Tensor, nn

from coterie_lab.training.device import precise
from coterie_lab.training.optimizers import Optimizer
from coterie_lab.training.task import Task


class Update:
    """Trains on a batch, and adds its loss to a sum on the device."""

    def __init__(
        self, task: Task, optimizer: Optimizer, clip: float | None, device: torch.device, dtype: torch.dtype | None
    ) -> None:
        self.task, self.optimizer, self.clip, self.device, self.dtype = task, optimizer, clip, device, dtype
        self.clipped = [p for group in optimizer.param_groups if group.get("clipped", True) for p in group["params"]]
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)

    def __call__(self, *batch: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with precise(self.device, self.dtype):
            loss = self.task.loss(*batch)
        loss.backward()
        self.optimizer.step(scale=self._scale())
        self.task.carry()
        self.loss_sum += loss.detach()

    def _scale(self) -> Tensor | None:
        """The scalar () by which the optimizer divides gradients as it reads them, to clip them."""
        gradients = [parameter.grad for parameter in self.clipped if parameter.grad is not None]
        if self.clip is None or not gradients:
            return None
        return (nn.utils.get_total_norm(gradients, foreach=True) / self.clip).clamp(min=1.0)
