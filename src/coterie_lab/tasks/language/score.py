"""How probable a line is.

Shapes: L words of the line.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from coterie_lab.data.folder import UNK
from coterie_lab.tasks.language.trained import Trained


@dataclass(frozen=True)
class Score:
    """Of one line; its first word follows nothing, so it is read and not scored."""

    log_prob: float  # natural logarithm, of all words after the first
    words: int  # scored
    unknown: int  # of all its words


@torch.no_grad()
def score(trained: Trained, lines: Iterable[str]) -> Iterator[Score]:
    """Scores each line by itself."""
    unknown = trained.id_of[UNK]
    for line in lines:
        ended = line if line.endswith("\n") else f"{line}\n"
        ids = torch.tensor([trained.ids(trained.tokens(ended))], dtype=torch.int64, device=trained.device)  # (1, L)
        strange = int((ids == unknown).sum())
        if ids.shape[1] < 2:
            yield Score(0.0, 0, strange)
            continue
        hidden, _ = trained.model.hidden(ids[:, :-1])
        found = trained.model.head(hidden, ids[:, 1:]).output
        yield Score(float(found.double().sum()), ids.shape[1] - 1, strange)
