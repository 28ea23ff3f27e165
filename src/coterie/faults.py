"""Bad input, found without making a GPU wait.

On a CPU a look at the data costs nothing, and bad input is refused at once. On a GPU a look would stop the host until
the device has caught up, so the device itself counts what is wrong, treats a bad target like an ignored one (nothing
is learned from it), and sends the tally to the host behind the other work; the next call that finds it there raises.

Shapes: T tokens, D width.
"""

import warnings

import torch
from torch import Tensor, nn


def check_target(hidden: Tensor, target: Tensor) -> Tensor:
    """The targets (...) as int64; raises if they are not class numbers, one for each of the hidden vectors (..., D)."""
    if target.shape != hidden.shape[:-1] or target.is_floating_point() or target.is_complex():
        raise ValueError(
            f"target must be class numbers in hidden's leading shape {tuple(hidden.shape[:-1])}; "
            f"got {tuple(target.shape)} of {target.dtype}"
        )
    return target.to(torch.int64)


class Faults(nn.Module):
    """A tally of bad input, kept where the input is."""

    tally: Tensor  # (4,) targets out of range, one of them; batches that are not finite, batches since step()

    def __init__(self, n_classes: int, ignore_index: int, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.n_classes = n_classes
        self.ignore_index = ignore_index
        self.register_buffer("tally", torch.zeros(4, dtype=torch.int64, device=device), persistent=False)
        self._arrived: Tensor | None = None  # the tally on its way to the host, in pinned memory
        self._sent: torch.cuda.Event | None = None

    @torch.no_grad()
    def usable(self, target: Tensor) -> Tensor:
        """The targets (T,), -1 in place of ignored ones and of those out of range, which are tallied."""
        ignored = target == self.ignore_index
        bad = ((target < 0) | (target >= self.n_classes)) & ~ignored
        if target.numel():
            self.tally[0] += bad.sum()
            example = torch.where(bad, target, torch.iinfo(torch.int64).min).amax()
            self.tally[1] = torch.where(bad.any(), example, self.tally[1])
        return torch.where(bad | ignored, -1, target)

    def stepped(self) -> None:
        """Begins to count batches anew."""
        self.tally[3:].zero_()  # an assignment would wait for the device

    def unstepped(self) -> int:
        """Batches since the last step(); waits for the device."""
        return int(self.tally[3])

    def look(self) -> None:
        """Raises or warns of what the host knows by now; a call that must not wait does not."""
        if torch.compiler.is_compiling():
            return
        if not self.tally.is_cuda:
            return self._say(self.tally)
        if torch.cuda.is_current_stream_capturing():
            return None
        if self._arrived is None or self._sent is None:
            self._arrived, self._sent = torch.zeros(4, dtype=torch.int64, pin_memory=True), torch.cuda.Event()
        elif self._sent.query():
            self._say(self._arrived)
        else:
            return None
        self._arrived.copy_(self.tally, non_blocking=True)
        self._sent.record()
        return None

    def _say(self, tally: Tensor) -> None:
        bad, example, skipped, _ = tally.tolist()
        if bad or skipped:
            self.tally[:3] = 0
            tally[:3] = 0
        if skipped:
            warnings.warn(
                f"{skipped} batch(es) left out of the statistic: the hidden vectors held NaN or infinity. The clusters "
                "are unharmed; look for the cause in the model (learning rate, loss scale, data)",
                UserWarning,
                stacklevel=4,
            )
        if bad:
            raise IndexError(
                f"{bad} target(s) out of range, such as {example}; classes are 0 to {self.n_classes - 1}, and "
                f"{self.ignore_index} is ignored"
            )

    def __getstate__(self) -> dict[str, object]:
        # Pinned memory and events stay behind when the module is copied or pickled.
        return {**self.__dict__, "_arrived": None, "_sent": None}
