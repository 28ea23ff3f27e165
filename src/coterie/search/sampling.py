"""Exact samples from P(w|h)^(1/τ): from all words, from the k best, or from the nucleus.

With temperature τ = 1, it draws a cluster from P(c|h), then a word from P(w|c, h), which opens one cluster per row.
With another τ, the probability of a cluster depends on its words: it is proportional to P(c|h)^(1/τ) · Z_c with
Z_c = Σ P(w|c, h)^(1/τ). Because Z_c ≤ max(1, S^(1-1/τ)), rejection sampling works: it draws a cluster as if Z_c were
that bound and accepts it with the probability Z_c / bound. Rejected rows are drawn again, up to a share of the dense
cost, then from all words, which is equally exact. A word that stands alone is drawn at once.

Shapes: T rows, D width, V words, R columns of the root (clusters, then words that stand alone), S words of a cluster, k
candidates, N rows still to draw.
"""

import torch
from torch import Tensor

from coterie.search.exact import TRIAL, attempt, dense_cost, opening_cost, topk
from coterie.search.words import Words, on_gpu

# The search for a nucleus considers this many of the best words before it computes all.
NUCLEUS = 64


def sample(
    words: Words,
    hidden: Tensor,
    log_root: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """One exact draw per row, (T,), from P(w|h)^(1/temperature), cut to the top k, then to the nucleus of mass p."""
    if top_k is None and top_p is None:
        return _from_all(words, hidden, log_root, temperature, generator)
    if top_k is not None:
        values, candidates = topk(words, hidden, log_root, top_k)
        probability = ((values - values[:, :1]) / temperature).softmax(1)
        return from_candidates(probability, candidates, top_p or 1.0, generator)
    assert top_p is not None
    return _from_nucleus(words, hidden, log_root, temperature, top_p, generator)


def from_candidates(probability: Tensor, candidates: Tensor, top_p: float, generator: torch.Generator | None) -> Tensor:
    """Draws from the nucleus of mass p of candidates in descending probability, both (T, k): (T,).

    >>> from_candidates(torch.tensor([[0.6, 0.3, 0.1]]), torch.tensor([[7, 2, 5]]), top_p=0.5, generator=None)
    tensor([7])
    """
    before = probability.cumsum(1) - probability
    drawn = torch.multinomial(torch.where(before < top_p, probability, 0.0), 1, generator=generator)
    return candidates.gather(1, drawn).squeeze(1)


def _from_all(
    words: Words, hidden: Tensor, log_root: Tensor, temperature: float, generator: torch.Generator | None
) -> Tensor:
    """Draws from all words."""
    if temperature == 1 and (gpu := on_gpu(words, hidden)):
        return gpu.draw(hidden, log_root, generator)
    partition, sizes = words.partition, words.partition.root_sizes
    n_rows, n_clusters = hidden.shape[0], partition.n_clusters
    drawn = torch.full((n_rows,), -1, dtype=torch.int64, device=hidden.device)
    log_bound = max(0.0, 1 - 1 / temperature) * sizes.clamp(min=1).log()  # (R,) of log Z_c
    # Subtract the maximum before dividing: a temperature close to zero would overflow.
    tempered = (log_root - log_root.amax(1, keepdim=True)) / temperature + log_bound
    proposal = tempered.softmax(1)
    allowance = TRIAL * dense_cost(words, n_rows)
    while True:
        pending = (drawn < 0).nonzero().squeeze(1)
        if not pending.numel():
            return drawn
        # Whether to stop must not depend on the clusters just drawn: that would favour cheap ones.
        if temperature != 1 and allowance < 0:
            break
        column = torch.multinomial(proposal[pending], 1, generator=generator).squeeze(1)
        keep, word = torch.rand(2, pending.numel(), generator=generator, dtype=torch.float64, device=hidden.device)
        alone = column >= n_clusters
        drawn[pending[alone]] = partition.slots[column[alone] - n_clusters]
        pending, cluster, keep, word = (part[~alone] for part in (pending, column, keep, word))
        if not pending.numel():
            continue
        allowance -= opening_cost(sizes[:n_clusters], cluster, pending.numel())
        log_p, members = words.open(hidden, pending, cluster)  # (N, S)
        up_to = (log_p.double() / temperature).exp().cumsum(1)
        place = torch.searchsorted(up_to, (word * up_to[:, -1])[:, None], right=True)
        place = torch.minimum(place, sizes[cluster, None] - 1)
        kept = (keep < up_to[:, -1] * torch.exp(-log_bound[cluster].double())) | (temperature == 1)
        drawn[pending] = torch.where(kept, members.gather(1, place).squeeze(1), -1)
    log_p = words.log_prob(hidden[pending], log_root[pending])
    log_p = ((log_p - log_p.amax(1, keepdim=True)) / temperature).softmax(1)
    drawn[pending] = torch.multinomial(log_p, 1, generator=generator).squeeze(1)
    return drawn


def _from_nucleus(
    words: Words,
    hidden: Tensor,
    log_root: Tensor,
    temperature: float,
    top_p: float,
    generator: torch.Generator | None,
) -> Tensor:
    """Draws from the nucleus: the fewest words that hold a mass of p."""
    drawn = torch.empty(hidden.shape[0], dtype=torch.int64, device=hidden.device)
    rest = torch.ones_like(drawn, dtype=torch.bool)
    # With another temperature, the normaliser depends on all words.
    if temperature == 1 and not hidden.is_cuda:
        values, candidates = attempt(words, hidden, log_root, min(NUCLEUS, words.partition.n_words), limit=0)
        probability = values.exp()
        rest = (values[:, -1] == -torch.inf) | (probability.sum(1) < top_p)
        drawn[~rest] = from_candidates(probability[~rest], candidates[~rest], top_p, generator)
    values, candidates = words.log_prob(hidden[rest], log_root[rest]).sort(1, descending=True)
    probability = ((values - values[:, :1]) / temperature).softmax(1)
    drawn[rest] = from_candidates(probability, candidates, top_p, generator)
    return drawn
