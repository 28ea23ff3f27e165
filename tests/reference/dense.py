"""All V log-probabilities in float64, word by word from the formula, sharing no code with the layer.

Shapes: T tokens, D width, V words, C clusters.
"""

import torch
from torch import Tensor

from coterie import SelfOrganizedSoftmax


def log_prob(head: SelfOrganizedSoftmax, hidden: Tensor) -> Tensor:
    """(T, D) → (T, V), differentiable in the layer's own parameters."""
    if head.projection is None:
        h_c = h_w = hidden
    else:
        w_c, w_w = head.projection[: head.in_features], head.projection[head.in_features :]
        h_c, h_w = hidden @ w_c.T, hidden @ w_w.T
        if head.activation == "relu":
            h_c, h_w = h_c.clamp(min=0), h_w.clamp(min=0)
    clusters: dict[int, list[int]] = {}
    for word, cluster in enumerate(head.partition.cluster_of.tolist()):
        clusters.setdefault(cluster, []).append(word)
    shift = [0] * head.n_clusters if head.cluster_bias is None else head.cluster_bias + head.prior.shift
    cluster_score = {c: h_c @ head.cluster_weight[c] + shift[c] for c in clusters}
    cluster_total = torch.stack(list(cluster_score.values())).logsumexp(0)
    columns: list[Tensor] = [hidden] * head.n_classes
    for cluster, words in clusters.items():
        scores = [h_w @ head.weight[w] + (0 if head.bias is None else head.bias[w]) for w in words]
        total = torch.stack(scores).logsumexp(0)
        for word, score in zip(words, scores, strict=True):
            columns[word] = cluster_score[cluster] - cluster_total + score - total
    return torch.stack(columns, 1)


def smoothed_loss(head: SelfOrganizedSoftmax, hidden: Tensor, target: Tensor, epsilon: float) -> Tensor:
    """The loss of each token (T,) with label smoothing at each level, from the words' log-probabilities."""
    log_p = log_prob(head, hidden)
    losses = []
    for t, word in enumerate(target.tolist()):
        members = [head.partition.members(c) for c in range(head.n_clusters)]
        cluster_log_p = torch.stack([log_p[t, words].logsumexp(0) for words in members if words.numel()])
        own = int(head.partition.cluster_of[word])
        in_cluster = log_p[t, members[own]] - log_p[t, members[own]].logsumexp(0)
        even = cluster_log_p.mean() + in_cluster.mean()
        losses.append(-(1 - epsilon) * log_p[t, word] - epsilon * even)
    return torch.stack(losses)
