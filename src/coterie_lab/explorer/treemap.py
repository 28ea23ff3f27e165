"""A map of all clusters with given areas, and similar clusters close together.

t-SNE computes positions from the cluster vectors. Then the map is halved recursively, across its longer side, and each
half gets the clusters that lie there: each cluster is a rectangle of exactly its area, next to similar ones.

Shapes: C clusters, D width.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LYING = 1.3  # a part is split vertically only if it is so much wider than high: words need width
LEAST = 1e-4  # of the mean area, so that a cluster without mass can still be seen


def positions(vectors: Floats, seed: int = 0) -> Floats:
    """Positions of the clusters, similar ones together: (C, D) → (C, 2), each coordinate from -1 to 1."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from sklearn.preprocessing import normalize

    n = vectors.shape[0]
    unit = normalize(np.nan_to_num(vectors.astype(np.float64), posinf=0.0, neginf=0.0))
    if n == 1 or np.ptp(unit, axis=0).max() < 1e-9:
        return np.zeros((n, 2))
    if n < 8:
        found = np.zeros((n, 2))
        kept = min(2, n, unit.shape[1])
        found[:, :kept] = PCA(kept, svd_solver="full").fit_transform(unit)
    else:
        found = TSNE(2, perplexity=min(15.0, (n - 1) / 3), init="pca", random_state=seed).fit_transform(unit)
    centred: Floats = np.asarray(found, dtype=np.float64) - found.mean(0)
    return centred / max(float(np.abs(centred).max()), 1e-9)


def rectangles(areas: Floats, places: Floats, width: float, height: float) -> Floats:
    """Left, top, width and height of each cluster in a map of this size: (C,), (C, 2) → (C, 4)."""
    areas = np.maximum(areas, areas.mean() * LEAST + 1e-12)
    found = np.zeros((areas.size, 4))
    open_parts = [(np.arange(areas.size), (0.0, 0.0, width, height))]
    while open_parts:
        items, (left, top, w, h) = open_parts.pop()
        if items.size == 1:
            found[items[0]] = left, top, w, h
            continue
        axis = 0 if w >= LYING * h else 1
        items = items[np.argsort(places[items, axis], kind="stable")]
        mass = areas[items].cumsum()
        cut = int(np.abs(mass[:-1] - mass[-1] / 2).argmin()) + 1
        share = mass[cut - 1] / mass[-1]
        if axis == 0:
            halves = (left, top, w * share, h), (left + w * share, top, w * (1 - share), h)
        else:
            halves = (left, top, w, h * share), (left, top + h * share, w, h * (1 - share))
        open_parts += [(items[:cut], halves[0]), (items[cut:], halves[1])]
    return found


def colours(places: Floats) -> tuple[Floats, Floats]:
    """A hue in degrees and a saturation from 0 to 1 for each cluster, (C,) both; similar ones for similar clusters."""
    hue = np.degrees(np.arctan2(places[:, 1], places[:, 0])) % 360
    return hue, np.clip(np.hypot(places[:, 0], places[:, 1]), 0.0, 1.0)
