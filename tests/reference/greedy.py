"""Algorithm 1 of the paper as it is printed: a loop over words, and for each a loop over clusters."""

from torch import Tensor


def assign(
    score: Tensor, counts: Tensor, n_clusters: int, capacity: int, budget: int, settled: Tensor | None = None
) -> list[int] | None:
    """The cluster of each word, or None if one finds no place. `score` (V, C), `counts` (V,), `settled` (V,)."""
    n_words = len(counts)
    frequency, wishes = counts.tolist(), score.tolist()
    cluster_of = [-1] * n_words if settled is None else settled.tolist()
    size, mass = [0] * n_clusters, [0] * n_clusters
    for word, cluster in enumerate(cluster_of):
        if cluster >= 0:
            size[cluster] += 1
            mass[cluster] += frequency[word]
    for word in sorted(range(n_words), key=lambda w: (-frequency[w], w)):
        if cluster_of[word] >= 0:
            continue
        for cluster in sorted(range(n_clusters), key=lambda c: (-wishes[word][c], c)):
            if size[cluster] < capacity and mass[cluster] < budget:
                cluster_of[word] = cluster
                size[cluster] += 1
                mass[cluster] += frequency[word]
                break
        else:
            return None
    return cluster_of
