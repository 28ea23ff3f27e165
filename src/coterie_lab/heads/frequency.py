"""Bins of words of like frequency (Mikolov et al. 2011).

Shapes: V words, C clusters.
"""

from typing import Literal

import torch
from torch import Tensor

from coterie.clustering.partition import Partition

By = Literal["frequency", "root"]


def frequency_bins(counts: Tensor, n_clusters: int, by: By = "frequency") -> Partition:
    """Words from frequent to rare, cut into C bins of equal mass; `counts` (V,). A very frequent word fills several.

    by: what mass is summed from, the words' frequency or its square root, which leaves the last bins fewer words.
    """
    if by not in ("frequency", "root"):
        raise ValueError(f"by must be 'frequency' or 'root'; got {by!r}")
    order = counts.argsort(descending=True, stable=True)
    share = counts[order].clamp(min=1).double()
    mass = (share.sqrt() if by == "root" else share).cumsum(0)
    before = torch.cat((mass.new_zeros(1), mass[:-1]))
    wanted = (before / mass[-1] * n_clusters).long().clamp(max=n_clusters - 1)  # (V,) in order
    cluster_of = torch.empty_like(order)
    cluster_of[order] = wanted
    return Partition(cluster_of, n_clusters)
