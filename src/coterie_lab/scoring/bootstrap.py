"""Confidence intervals of a mean over items: percentiles from resampling the items."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class Interval(NamedTuple):
    """A mean and its confidence interval."""

    low: float
    mean: float
    high: float


def interval(per_item: ArrayLike, samples: int = 1000, level: float = 0.95, seed: int = 0) -> Interval:
    """The mean of per_item (N,) and the interval that holds `level` of the means of `samples` resamplings of it."""
    values = np.asarray(per_item, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"an interval needs one number for each of one or more items; got shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError(f"item {int(np.flatnonzero(~np.isfinite(values))[0])} is {values[~np.isfinite(values)][0]}")
    if samples < 1:
        raise ValueError(f"samples is the number of resamplings, at least 1; got {samples}")
    if not 0 < level < 1:
        raise ValueError(f"level is a share between 0 and 1, such as 0.95; got {level}")
    random = np.random.default_rng(seed)
    # One resampling at a time, since all at once would take samples × N numbers.
    means = [values[random.integers(len(values), size=len(values))].mean() for _ in range(samples)]
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(values.mean()), float(high))


def difference(a: ArrayLike, b: ArrayLike, samples: int = 1000, level: float = 0.95, seed: int = 0) -> Interval:
    """The mean of a - b and its interval, for two systems scored on the same items: a (N,), b (N,).

    Items are drawn in pairs, so that what makes an item hard for both does not blur their difference.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(f"a paired difference needs the same items twice; got shapes {first.shape} and {second.shape}")
    return interval(first - second, samples, level, seed)
