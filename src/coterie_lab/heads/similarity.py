"""Clusters of similar words: k-means over word vectors, with the layer's limits (Le et al. 2011; Chen et al. 2015).

The centres come from scikit-learn; the words then choose among them by the layer's own E-step, frequent ones first, so
that no cluster holds more words or more of the text than it may.

Shapes: V words, E width of a word vector, C clusters, B words in a block, N words of text, P pairs of neighbours.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from coterie.checks import cluster_capacity, default_budget
from coterie.clustering.assignment import assign
from coterie.clustering.partition import Partition
from coterie_lab.heads.cooccurrence import neighbours
from coterie_lab.needed import needed_for

WIDTH = 100  # E


def similar_words(vectors: Tensor, counts: Tensor, n_clusters: int, gamma: float = 1.5) -> Partition:
    """Clusters words by the direction of their vectors; `vectors` (V, E), `counts` (V,)."""
    with needed_for("finding clusters of similar words"):
        from sklearn.cluster import MiniBatchKMeans
    n_words = counts.numel()
    if vectors.ndim != 2 or vectors.shape[0] != n_words or not bool(vectors.isfinite().all()):
        raise ValueError(
            f"word vectors must be finite numbers, one row for each of the {n_words} words; got shape "
            f"{tuple(vectors.shape)}"
        )
    unit = F.normalize(vectors.float().cpu(), dim=1)
    known = unit[unit.any(1)]  # words without a vector do not move the centres
    if len(known) < n_clusters:
        raise ValueError(f"{n_clusters} clusters need as many words with a vector other than zero; got {len(known)}")
    found = MiniBatchKMeans(n_clusters, batch_size=4096, n_init=3, random_state=0).fit(known.numpy())
    centres = torch.from_numpy(found.cluster_centers_).float()  # (C, E)
    lengths = centres.square().sum(1)  # (C,)

    def nearness(words: Tensor) -> Tensor:
        """Minus the squared distance, up to a constant per word: (B,) → (B, C)."""
        return 2 * unit[words] @ centres.T - lengths

    capacity = cluster_capacity(n_words, n_clusters, gamma)
    budget = max(1, math.ceil(default_budget(n_words, n_clusters, capacity) * int(counts.sum())))
    return Partition(assign(nearness, counts, n_clusters, capacity, budget), n_clusters, capacity)


def vectors_from_text(text: NDArray[Any], n_words: int, width: int = WIDTH) -> Tensor:
    """A vector for each word, (V, E), from the text (N,).

    How much more often than by chance a word stands before and after each other one (positive pointwise mutual
    information), brought down to E numbers by a truncated singular value decomposition.
    """
    with needed_for("making word vectors from text"):
        from scipy import sparse
        from sklearn.decomposition import TruncatedSVD
    pairs = neighbours(text, n_words)
    count = pairs.count.double()  # (P,)
    before = torch.zeros(n_words, dtype=torch.float64).index_add_(0, pairs.first, count)
    after = torch.zeros(n_words, dtype=torch.float64).index_add_(0, pairs.second, count)
    by_chance = before[pairs.first] * after[pairs.second] / count.sum()
    information = (count / by_chance).log().clamp(min=0).float().numpy()  # (P,)
    first, second = pairs.first.numpy(), pairs.second.numpy()
    # A row for each word: what follows it, then what it follows.
    places = (np.concatenate((first, second)), np.concatenate((second, first + n_words)))
    company = sparse.csr_matrix((np.tile(information, 2), places), (n_words, 2 * n_words))
    found = TruncatedSVD(min(width, n_words - 1), random_state=0).fit_transform(company)
    return torch.from_numpy(np.ascontiguousarray(found, dtype=np.float32))


def vectors_from_file(path: str | Path) -> Tensor:
    """Word vectors, (V, E), as `numpy.save` wrote them."""
    try:
        return torch.from_numpy(np.asarray(np.load(path, allow_pickle=False), dtype=np.float32))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist: give a file of word vectors that numpy.save wrote") from None
    except (ValueError, EOFError, TypeError) as error:
        raise ValueError(
            f"{path} holds no word vectors: expected one array of V rows, as numpy.save writes it ({error})"
        ) from error
