"""When to reorganise: by evidence, or at fixed intervals as in the paper.

A reorganisation pays when words have been seen often enough since the last one to say where they belong, and it costs
little as long as the model is young. So the default counts targets per word rather than updates, reorganises early and
often, and settles once little of the text moves. It needs no knowledge of the run's length.

Shapes: V words.
"""

from collections.abc import Callable
from typing import Literal, Protocol

# Targets per word before the first reorganisation; each later one waits longer by this factor, up to the longest. The
# less the model has learned in between, the fewer words move, and the less it has to learn again.
FIRST, GROWTH, LONGEST = 4.0, 1.1, 8.0
# Updates from one to the next, at least: with a small vocabulary a batch has that many targets at once.
LEAST = 10
# After a reorganisation that moved less than this share of the text in clusters it waits twice as long, and after so
# many in a row the clusters are settled. Words that stand alone never move and do not count: a text of which they are
# most would settle too early.
LITTLE, TIMES = 0.03, 4

Every = int | Literal["auto"] | None


class Schedule(Protocol):
    """Decides after every update; `state` is what a checkpoint needs."""

    until: int | None  # the last update at which words may move; None: no end
    state: tuple[int, ...]

    def is_due(self, update: int, targets: Callable[[], int]) -> bool:
        """Whether to reorganise after this update; `targets` counts those since the last reorganisation."""
        ...

    def restart(self) -> None:
        """Forgets the reorganisations so far."""
        ...

    def moved(self, update: int, share_of_mass: float) -> None:
        """Records a reorganisation and the share of the text in clusters that it moved."""
        ...


class AtIntervals:
    """Every K updates, up to a last one if given."""

    def __init__(self, every: int | None, until: int | None = None) -> None:
        self.every, self.until = every, until
        self.state: tuple[int, ...] = ()

    def is_due(self, update: int, targets: Callable[[], int]) -> bool:
        if self.every is None or (self.until is not None and update > self.until):
            return False
        return update % self.every == 0

    def restart(self) -> None:
        pass

    def moved(self, update: int, share_of_mass: float) -> None:
        pass


class ByEvidence:
    """Whenever there are enough targets per word, until little moves.

    Counting targets on a GPU makes the host wait, so it looks at some updates only: at all of the first 63, then at 32
    each time the run doubles. They are the same on every rank and after a checkpoint, and as they do not depend on the
    counts, more targets never mean a later reorganisation.
    """

    def __init__(self, n_words: int, until: int | None = None) -> None:
        self.n_words, self.until = n_words, until
        self.restart()

    def restart(self) -> None:
        self._last, self._done, self._calm = 0, 0, 0

    @property
    def state(self) -> tuple[int, ...]:
        return self._last, self._done, self._calm

    @state.setter
    def state(self, state: tuple[int, ...]) -> None:
        self._last, self._done, self._calm = state

    @property
    def settled(self) -> bool:
        """Whether words have come to rest."""
        return self._calm >= TIMES

    def needed(self) -> int:
        """Targets from one reorganisation to the next."""
        return round(self.n_words * min(FIRST * GROWTH ** min(self._done, 100), LONGEST) * (1 << self._calm))

    def is_due(self, update: int, targets: Callable[[], int]) -> bool:
        if self.settled or update < self._last + LEAST or (self.until is not None and update > self.until):
            return False
        between = 1 << max(0, update.bit_length() - 6)  # updates from one look to the next
        return update % between == 0 and targets() >= self.needed()

    def moved(self, update: int, share_of_mass: float) -> None:
        self._last, self._done = update, self._done + 1
        self._calm = self._calm + 1 if share_of_mass < LITTLE else 0
