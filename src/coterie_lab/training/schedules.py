"""The learning rate over a run, as a factor on what each parameter group starts from."""

import math

from coterie_lab.training.settings import Schedule


def factor(schedule: Schedule, step: int, steps_per_epoch: int, epochs: int, warmup: int = 0) -> float:
    """What the learning rate is multiplied by at update `step`, counted from 0."""
    total = steps_per_epoch * epochs
    rise = min(1.0, (step + 1) / warmup) if warmup else 1.0
    if schedule == "halving":
        # Halved after every epoch that ends in the second half: with 5 epochs 1, 1, 1, 1/2, 1/4.
        return rise * 0.5 ** max(0, step // steps_per_epoch + 1 - (epochs + 1) // 2)
    if schedule == "constant":
        return rise
    done = min(1.0, max(0, step - warmup) / max(1, total - warmup))
    return rise * (0.5 * (1 + math.cos(math.pi * done)) if schedule == "cosine" else 1 - done)
