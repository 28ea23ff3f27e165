"""What the layer measures and reports: perplexities, what a reorganisation moved, and bad input.

On a CPU, bad input is refused at once. On a GPU, checking would make the host wait for the device. There the device
counts bad targets, treats them as ignored, and copies its counts to the host asynchronously; the next `step()`,
or the next call in evaluation, that finds the copy complete raises.

Shapes: T tokens.
"""

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.buffers import Kept


@dataclass(frozen=True)
class Measures:
    """Perplexity over a number of tokens, and its two factors (the paper's equations 5 and 6)."""

    perplexity: float
    cluster_perplexity: float
    in_cluster_perplexity: float
    tokens: int


@dataclass(frozen=True)
class Reorganization:
    """What one E-step changed (the paper's Figure 1)."""

    words_moved: int
    share_of_words: float
    share_of_mass: float
    empty_clusters: int


class Meter(Kept):
    """Sums log P(c|h) and log P(w|c, h) on the device, separately for training and evaluation."""

    sums: Tensor  # (2, 3): evaluation and training; log P(c), log P(w|c), tokens

    def __init__(self, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.keep("sums", 2, 3, dtype=torch.float64, device=device)

    def row(self) -> Tensor:
        """The sums of the current mode, (3,)."""
        return self.sums[int(self.training)]

    def read(self, reset: bool = True) -> Measures:
        """The measures of the current mode since the last reset; synchronises with the device."""
        cluster, word, tokens = self.row().tolist()
        if reset:
            self.row().zero_()
        if tokens == 0:
            return Measures(math.nan, math.nan, math.nan, 0)
        return Measures(
            perplexity=perplexity(-(cluster + word) / tokens),
            cluster_perplexity=perplexity(-cluster / tokens),
            in_cluster_perplexity=perplexity(-word / tokens),
            tokens=int(tokens),
        )


def perplexity(loss: float) -> float:
    """e to the power of the loss, kept finite: JSON has no infinity."""
    return math.exp(min(loss, 700.0))


def summarize(
    log_cluster: Tensor, log_word: Tensor, n_used: Tensor, sums: Tensor, tally: Tensor
) -> tuple[Tensor, Tensor]:
    """log P of a batch's targets (T,) and the mean loss (); adds the batch to `sums` and `tally`.

    `log_cluster`, `log_word` (T,), 0 for ignored tokens; `n_used` () the number of others; `sums` (3,) as in `Meter`,
    `tally` (5,) as in `Tally`. If a hidden vector is not finite, neither is the loss, so only the loss is checked.
    """
    cluster, word = log_cluster.sum(), log_word.sum()
    # A batch with nothing to predict has loss 0, not 0/0.
    loss = -(cluster + word) / n_used.clamp(min=1)
    with torch.no_grad():
        sound = torch.isfinite(loss)
        sums += torch.where(sound, torch.stack((cluster, word, n_used)), 0.0)
        tally[2:] += torch.stack((~sound, torch.ones_like(sound), torch.where(sound, n_used, 0)))
    return log_cluster + log_word, loss


class Tally(Kept):
    """Counts on the input's device: bad input, and what has been seen in training."""

    # (2, 5) evaluation and training: targets out of range, an example of one; batches that are not finite, batches
    # since the last step(), targets since the last reorganisation
    counts: Tensor
    skipped: Tensor  # () updates that an optimizer skipped and the layer has counted
    fresh: Tensor  # (V,) occurrences since the last reorganisation, in a layer that counts for itself

    def __init__(self, n_classes: int, ignore_index: int, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.n_classes, self.ignore_index = n_classes, ignore_index
        self.keep("counts", 2, 5, dtype=torch.int64, device=device)
        self.keep("skipped", dtype=torch.int64, device=device)
        self._arrived: Tensor | None = None  # the counts on their way to the host, in pinned memory
        self._sent: torch.cuda.Event | None = None

    def row(self) -> Tensor:
        """The counts of the current mode, (5,)."""
        return self.counts[int(self.training)]

    def stepped(self) -> None:
        """Sets the number of batches since the last step() to zero."""
        self.counts[:, 3].zero_()  # in-place: an assignment would synchronise

    def unstepped(self) -> int:
        """The number of training batches since the last step(); synchronises with the device."""
        return 0 if self.counts.is_meta else int(self.counts[1, 3])

    def targets(self) -> int:
        """The number of targets since the last reorganisation; synchronises with the device."""
        return 0 if self.counts.is_meta else int(self.counts[1, 4])

    def n_skipped(self) -> int:
        """The number of counted updates that were skipped; synchronises with the device."""
        return 0 if self.skipped.is_meta else int(self.skipped)

    def take_skipped(self) -> int:
        """The same, which is zero from now on."""
        number = self.n_skipped()
        self.skipped.zero_()
        return number

    def set_targets(self, number: int) -> None:
        """Sets the number of targets since the last reorganisation."""
        self.counts[1, 4] = number

    def add_targets(self, number: Tensor) -> None:
        """Adds a number () to those since the last reorganisation; never synchronises."""
        self.counts[1, 4] += number

    def look(self) -> None:
        """Raises or warns if the host knows of bad input by now; never synchronises."""
        if torch.compiler.is_compiling() or self.counts.is_meta:
            return
        if not self.counts.is_cuda:
            return self._report(self.counts)
        if torch.cuda.is_current_stream_capturing():
            return None
        if self._arrived is None or self._sent is None:
            self._arrived, self._sent = torch.zeros(2, 5, dtype=torch.int64, pin_memory=True), torch.cuda.Event()
        elif self._sent.query():
            self._report(self._arrived)
        else:
            return None
        self._arrived.copy_(self.counts, non_blocking=True)
        self._sent.record()
        return None

    def _report(self, counts: Tensor) -> None:
        of_modes = counts.tolist()
        bad, skipped = sum(row[0] for row in of_modes), sum(row[2] for row in of_modes)
        example = next((row[1] for row in of_modes if row[0]), 0)
        if bad or skipped:
            self.counts[:, :3] = 0
            counts[:, :3] = 0
        if skipped:
            warnings.warn(
                f"{skipped} batch(es) left out of the statistic: the hidden vectors held NaN or infinity. The clusters "
                "are intact; look for the cause in the model (learning rate, loss scale, data)",
                UserWarning,
                stacklevel=4,
            )
        if bad:
            raise IndexError(
                f"{bad} target(s) out of range, such as {example}; classes are 0 to {self.n_classes - 1}, and "
                f"{self.ignore_index} is ignored"
            )

    def __getstate__(self) -> dict[str, object]:
        # A copied or pickled module leaves its pinned memory and event behind.
        return {**self.__dict__, "_arrived": None, "_sent": None}
