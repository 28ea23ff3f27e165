"""All V log-probabilities in float64, word by word from the formula, sharing no code with the layer.

Shapes: T tokens, D width, V words, C clusters.
"""

import torch
from torch import Tensor

from coterie import SelfOrganizedSoftmax

ACTIVATIONS = {
    "relu": lambda x: x.clamp(min=0),
    "tanh": lambda x: 1 - 2 / ((2 * x).exp() + 1),
    "gelu": lambda x: x * (1 + (x / 2**0.5).erf()) / 2,
}


def log_prob(head: SelfOrganizedSoftmax, hidden: Tensor) -> Tensor:
    """(T, D) → (T, V), differentiable in the layer's own parameters."""
    if head.projection is None:
        h_c = h_w = hidden
    else:
        w_c, w_w = head.projection[: head.in_features], head.projection[head.in_features :]
        if head.activation is None:
            step = min(1, 50 / head.in_features)
            h_c, h_w = hidden + step * hidden @ w_c.T, hidden + step * hidden @ w_w.T
        else:
            h_c, h_w = ACTIVATIONS[head.activation](hidden @ w_c.T), ACTIVATIONS[head.activation](hidden @ w_w.T)
    clusters = _words_of(head)
    alone = clusters.pop(head.n_clusters, [])
    bias = [0] * head.n_classes if head.bias is None else head.bias
    shift = [0] * head.n_clusters if head.cluster_bias is None else head.cluster_bias + head.prior.shift
    cluster_score = {c: h_c @ head.cluster_weight[c] + shift[c] for c in clusters}
    own_score = {w: h_c @ head.weight[w] + bias[w] for w in alone}
    root_total = torch.stack([*cluster_score.values(), *own_score.values()]).logsumexp(0)
    columns = {word: score - root_total for word, score in own_score.items()}
    for cluster, words in clusters.items():
        scores = [h_w @ head.weight[w] + bias[w] for w in words]
        total = torch.stack(scores).logsumexp(0)
        for word, score in zip(words, scores, strict=True):
            columns[word] = cluster_score[cluster] - root_total + score - total
    return torch.stack([columns[word] for word in range(head.n_classes)], 1)


def _words_of(head: SelfOrganizedSoftmax) -> dict[int, list[int]]:
    """The words of each cluster that has any, and, as those of cluster C, the words that stand alone."""
    clusters: dict[int, list[int]] = {}
    for word, cluster in enumerate(head.partition.cluster_of.tolist()):
        clusters.setdefault(cluster, []).append(word)
    return clusters


def smoothed_loss(head: SelfOrganizedSoftmax, hidden: Tensor, target: Tensor, epsilon: float) -> Tensor:
    """The loss of each token (T,) with label smoothing at each level, from the words' log-probabilities.

    In the root each of the V words has an equal part, which goes to its cluster, or to itself if it stands alone. In
    the target's cluster each of its words has an equal part.
    """
    log_p = log_prob(head, hidden)
    clusters = _words_of(head)
    alone = clusters.pop(head.n_clusters, [])
    losses = []
    for t, word in enumerate(target.tolist()):
        root = sum(len(words) * log_p[t, words].logsumexp(0) for words in clusters.values()) + log_p[t, alone].sum()
        even = root / head.n_classes
        if word not in alone:
            mine = log_p[t, clusters[int(head.partition.cluster_of[word])]]
            even = even + (mine - mine.logsumexp(0)).mean()
        losses.append(-(1 - epsilon) * log_p[t, word] - epsilon * even)
    return torch.stack(losses)
