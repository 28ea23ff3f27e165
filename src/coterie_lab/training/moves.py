"""The history of the clusters: those of all words at the start of a run, and the moves of each reorganization.

The cluster of a word that stands alone is C, one past the last, as in a partition.

Each is a line of JSON, so that the file can be truncated at a checkpoint like the run's other journals. At first nearly
all words move; their numbers and clusters are compressed to about two bytes per move.

Shapes: V words, M words moved.
"""

import base64
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.softmax import SelfOrganizedSoftmax
from coterie_lab.training.logs import Journal, read_journal

Numbers = NDArray[np.int32]

# What is to be said of clusters in which nothing has been found.
RANDOM = "random: no reorganization yet"


@dataclass(frozen=True)
class Move:
    """The moves of one reorganization: words, ascending, and their new clusters; a run's first entry has all words."""

    step: int
    words: Numbers  # (M,)
    clusters: Numbers  # (M,)


class History:
    """Follows a partition from one reorganization to the next."""

    def __init__(self, cluster_of: Tensor) -> None:
        """`cluster_of` (V,): the current clusters, as in a partition."""
        self.last = _numbers(cluster_of)
        words = np.arange(self.last.size, dtype=np.int32)
        self.moves = [Move(0, words, self.last)]

    def add(self, step: int, cluster_of: Tensor) -> Move:
        """Compares the clusters with those of the last call; returns what has changed."""
        now = _numbers(cluster_of)
        words = np.flatnonzero(now != self.last).astype(np.int32)
        self.last = now
        self.moves.append(Move(step, words, now[words]))
        return self.moves[-1]


class MovesJournal(Journal):
    """The file of the moves of a head with clusters; it stays empty for another head."""

    def __init__(self, path: Path, keep: int, head: nn.Module) -> None:
        super().__init__(path, keep)
        self.head = head if isinstance(head, SelfOrganizedSoftmax) else None
        if self.head is not None:
            self.history = History(self.head.partition.cluster_of)
            if keep == 0:  # a resumed run already has its first line
                self.write(_packed(self.history.moves[0]))

    def reorganized(self, step: int) -> None:
        """Writes the moves of the reorganization at this update."""
        if self.head is not None:
            self.write(_packed(self.history.add(step, self.head.partition.cluster_of)))
            self.history.moves.clear()  # they are in the file


def read_moves(path: Path) -> list[Move]:
    """All moves of a file; [] if there is none."""
    try:
        return [_unpacked(record) for record in read_journal(path)]
    except (ValueError, TypeError, LookupError, zlib.error) as error:
        raise ValueError(
            f"{path} is damaged: it does not say which words moved; delete it, and reports leave the moves out"
        ) from error


def until(moves: list[Move], step: int) -> list[Move]:
    """The moves up to an update, which led to the model of that update."""
    return [move for move in moves if move.step <= step]


def partitions(moves: list[Move]) -> Iterator[tuple[Move, Numbers]]:
    """Each move but the first, with the clusters of all words before it, (V,)."""
    if not moves:
        return
    now = moves[0].clusters.copy()
    for move in moves[1:]:
        yield move, now.copy()
        now[move.words] = move.clusters


def _numbers(cluster_of: Tensor) -> Numbers:
    found: Numbers = cluster_of.cpu().numpy().astype(np.int32)
    return found


def _packed(move: Move) -> dict[str, Any]:
    # Gaps are small where many words move, so most bytes are zero; grouping bytes by significance compresses them well.
    rows = np.stack((np.diff(move.words, prepend=np.int32(0)), move.clusters))  # (2, M)
    planes = np.ascontiguousarray(rows, dtype="<i4").view(np.uint8).reshape(-1, 4).T  # (4, 2M)
    packed = zlib.compress(np.ascontiguousarray(planes).tobytes())
    return {"step": move.step, "moved": int(move.words.size), "packed": base64.b64encode(packed).decode()}


def _unpacked(record: dict[str, Any]) -> Move:
    planes = np.frombuffer(zlib.decompress(base64.b64decode(record["packed"])), dtype=np.uint8).reshape(4, -1)
    rows = np.ascontiguousarray(planes.T).view("<i4").reshape(2, record["moved"])
    return Move(record["step"], np.cumsum(rows[0], dtype=np.int32), rows[1].astype(np.int32))
