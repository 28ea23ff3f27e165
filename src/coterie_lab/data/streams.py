"""Batches of a text as parallel streams or as windows in random order, each read from disk when it is needed.

Shapes: N words of text, B sequences, L steps.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IGNORED = -100  # the target of ignored places
SMALL = 0.1  # a text is, up to this share of the memory that is free
Ids = NDArray[Any]  # (N,)


class Streams:
    """A text in B pieces read in parallel, L words per batch; numbered, so that a run can resume at any batch.

    All batches have the same shape: the end of each piece, less than L words, is left out.
    """

    def __init__(self, ids: Ids, sequences: int, length: int, rank: int = 0, size: int = 1) -> None:
        """Process `rank` of `size` reads its share of the B sequences."""
        each = (len(ids) - 1) // sequences
        self.length, self.steps = length, each // length
        check_shape(self.steps, len(ids), sequences, length, size)
        share = sequences // size
        rows = slice(rank * share, (rank + 1) * share)
        self.words = ids[: each * sequences].reshape(sequences, each)[rows]  # (B, N / B), a view
        self.targets = ids[1 : each * sequences + 1].reshape(sequences, each)[rows]
        self.resident: tuple[Tensor, Tensor] | None = None

    def move(self, device: torch.device) -> None:
        """Copies the text to a GPU if it needs little of the free memory: then no step copies from the host."""
        free, _ = torch.cuda.mem_get_info(device)
        if 2 * 4 * self.words.size < SMALL * free:
            words, targets = (torch.from_numpy(part.astype(np.int32)) for part in (self.words, self.targets))
            self.resident = words.to(device), targets.to(device)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Words and targets of an update, both (B, L), counted over all epochs."""
        step %= self.steps
        part = slice(step * self.length, (step + 1) * self.length)
        if self.resident is not None:
            words, targets = self.resident
            return words[:, part].long(), targets[:, part].long()
        return _tensor(self.words[:, part]), _tensor(self.targets[:, part])


class Windows:
    """Windows of L words from all over a text, B per batch; numbered, so that a run can resume at any batch.

    Each epoch cuts the text at other places and shuffles its windows anew.
    """

    def __init__(self, ids: Ids, sequences: int, length: int, seed: int, rank: int = 0, size: int = 1) -> None:
        """Process `rank` of `size` reads its share of the B windows."""
        self.n_windows = len(ids) // length - 1  # wherever the first begins, a target follows the last
        self.ids, self.sequences, self.length, self.seed = ids, sequences, length, seed
        self.steps = self.n_windows // sequences
        check_shape(self.steps, len(ids), sequences, length, size)
        share = sequences // size
        self.rows = slice(rank * share, (rank + 1) * share)
        self.resident: Tensor | None = None
        self._shuffled: tuple[int, Ids] | None = None

    def move(self, device: torch.device) -> None:
        """Copies the text to a GPU if it needs little of the free memory."""
        free, _ = torch.cuda.mem_get_info(device)
        if 4 * len(self.ids) < SMALL * free:
            self.resident = torch.from_numpy(self.ids.astype(np.int32)).to(device)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Words and targets of an update, both (B, L), counted over all epochs."""
        epoch, at = divmod(step, self.steps)
        if self._shuffled is None or self._shuffled[0] != epoch:
            luck = np.random.default_rng((self.seed, epoch))
            self._shuffled = epoch, luck.integers(self.length) + luck.permutation(self.n_windows) * self.length
        starts = self._shuffled[1][at * self.sequences : (at + 1) * self.sequences][self.rows]
        places = starts[:, None] + np.arange(self.length + 1)  # (B, L + 1)
        if self.resident is None:
            read = _tensor(self.ids[places])
        else:
            read = self.resident[to_device((torch.from_numpy(places),), self.resident.device)[0]].long()
        return read[:, :-1].contiguous(), read[:, 1:].contiguous()


def check_shape(steps: int, n_words: int, sequences: int, length: int, processes: int) -> None:
    """Raises if a text has not one batch of this shape, or processes cannot share it."""
    if steps < 1:
        raise ValueError(
            f"the text of {n_words:,} words is too short for {sequences} sequences of {length} words: lower "
            "--sequences or --length"
        )
    if sequences % processes:
        raise ValueError(f"{sequences} sequences cannot be shared evenly by {processes} processes")


def to_device(parts: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, ...]:
    """Copies a batch to the device; from pinned memory to a GPU, so that the host does not wait."""
    if device.type != "cuda":
        return parts
    return tuple(part.pin_memory().to(device, non_blocking=True) for part in parts)


def whole(ids: Ids, sequences: int, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches with every word but the first as a target once: words and targets, both (B, L), padded by IGNORED."""
    n = len(ids) - 1
    if n < 1:
        raise ValueError(f"a text of {len(ids)} words has nothing to predict: two are the least")
    sequences = min(sequences, n)
    each = -(-n // sequences)
    starts = np.arange(sequences)[:, None] * each  # (B, 1)
    for begin in range(0, each, length):
        at = np.arange(begin, min(begin + length, each))  # (L,)
        places = starts + at  # (B, L)
        inside = places < n
        places = np.minimum(places, n - 1)
        targets = np.where(inside, ids[places + 1].astype(np.int64), IGNORED)
        yield _tensor(ids[places]), torch.from_numpy(targets)


def _tensor(ids: Ids) -> Tensor:
    return torch.from_numpy(ids.astype(np.int64))
