"""Whether a checkpoint can be loaded into a layer: told before anything is overwritten.

Shapes: V words, C clusters, D width, S most words in a cluster.
"""

from collections.abc import Mapping

import torch
from torch import Tensor


def why_unfit(
    state: Mapping[str, Tensor], prefix: str, shape: tuple[int, int, int], capacity: int, statistic: str | None
) -> str | None:
    """Why a state dict cannot be of a layer of `shape` (V, C, D), `capacity` S and `statistic`, or None if it can."""
    if statistic is not None and prefix + "statistic.total" in state and f"{prefix}statistic.{statistic}" not in state:
        return f"the checkpoint's statistic is another kind than the layer's {statistic!r}: build it with the other one"
    weight, clusters = state.get(prefix + "weight"), state.get(prefix + "cluster_weight")
    if weight is not None and clusters is not None:
        given = (weight.shape[0], clusters.shape[0], weight.shape[1])
        if given != shape:
            return (
                "the checkpoint holds {} classes in {} clusters, width {}; the layer was built for {} classes in {} "
                "clusters, width {}: build it with the checkpoint's numbers"
            ).format(*given, *shape)
    cluster_of = state.get(prefix + "partition.cluster_of")
    if cluster_of is None or cluster_of.shape != shape[:1]:
        return None
    low, high = int(cluster_of.min()), int(cluster_of.max())
    if low < 0 or high >= shape[1]:
        return f"the checkpoint seats words in clusters {low} to {high}; there are {shape[1]}, from 0: it is damaged"
    fullest = int(torch.bincount(cluster_of).max())
    if fullest > capacity:
        return (
            f"the checkpoint holds a cluster of {fullest} words; this layer has places for {capacity}: raise gamma, or "
            "build it with that checkpoint's partition"
        )
    return None
