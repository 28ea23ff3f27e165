"""What a head may be built from beside counts and options.

Shapes: N words of text, V words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from coterie.clustering.partition import Partition


@dataclass(frozen=True)
class Material:
    """What the trainer knows. A builder that names one of these as a parameter is given it; None: not known."""

    vocabulary: Sequence[str] | None = None  # (V,) how the words are spelled
    text: NDArray[Any] | None = None  # (N,) the training text; empty: there is nothing left to learn from it
    partition: Partition | None = None  # the clusters that a saved head already has
