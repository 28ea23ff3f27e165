"""Exact answers without computing all V words: the k best of a row, or of several hypotheses together.

A word is never more probable than its cluster, P(w|h) ≤ P(c|h). So clusters are opened in descending P(c|h), and a row
is finished once its k-th best word beats the next cluster. Of several hypotheses, as a beam search has them, only the k
best extensions of all together are wanted: a cluster is asked for by a hypothesis, and counts as much as P(c|h) times
the hypothesis's own probability. A flat distribution would open nearly all clusters, slower than one large product:
after a small share of what that would cost, what is not yet finished is answered densely, unless the clusters still in
question are certain to cost less.

Costs are counted in products of one hidden vector with one word vector.

Shapes: T questions, B hypotheses of each (1: rows), D width, V words, C clusters, S words of a cluster, k answers,
P pairs of a hypothesis and a cluster to open. A pair is a number b · C + c, an extension a number b · V + w.
"""

import bisect
import math
import operator
from collections.abc import Callable

import torch
from torch import Tensor

from coterie.search.words import ASKING, MANY_ROWS, Words, on_gpu

# What fetching a word's vector costs: by its number, and one after the other in one large product.
FETCH, STREAM = 20, 5
# So few words are all computed before a search has begun; of many rows, four times as many.
SMALL = 1 << 15
# The share of the dense cost that may be spent before it is known whether searching costs less.
TRIAL = 0.15
# Rows in which, after this many clusters, half of the vocabulary is still in question are flat: no more is tried.
FIRST_LOOK = 3
# For one row, clusters of so many words are opened together, and of half as many as are open already: they might have
# been spared, but asking for a cluster takes as long as fetching a few hundred words.
TOGETHER = 1024
# Rows that tell what the others of a batch will be like, and the share of the dense cost below which a search is worth
# while: no row is like another, and the dense cost is certain.
PILOTS, WORTH = 4, 0.6
# What is left after the trial is opened in so many parts.
PARTS = 2
# All words of k clusters are sorted in place of all there are, if that leaves so many times fewer.
SPARED = 8
# Numbers a wave may hold, a word of a cluster for every row that asks: more would take too much memory.
MOST_FOUND = 1 << 24


def topk(words: Words, hidden: Tensor, log_cluster: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most probable words, best first: log P(w|h) and the words, both (T, k).

    `hidden` (T, D), `log_cluster` (T, C); on a GPU its logits will do.
    """
    if gpu := on_gpu(words, hidden):
        return gpu.topk(hidden, log_cluster, k)
    if hidden.is_cuda or torch.compiler.is_compiling():
        values, indices = words.log_prob(hidden, log_cluster).topk(k, -1)
        return values, indices
    return _answer(words, hidden, log_cluster, k)


def extend(words: Words, hidden: Tensor, log_cluster: Tensor, score: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best extensions of B hypotheses together, best first: log P of hypothesis and word, and b · V + w, (T, k).

    `hidden` (T · B, D), `log_cluster` (T · B, C), on a GPU its logits will do, `score` (T, B): log P of each
    hypothesis, -inf: there is none.
    """
    score = score.to(torch.promote_types(score.dtype, torch.float32))
    if (gpu := on_gpu(words, hidden)) and (found := gpu.extend(hidden, log_cluster, score, k)):
        return found
    if hidden.is_cuda or torch.compiler.is_compiling():
        return together(
            lambda rows, n: topk(words, hidden[rows], log_cluster[rows], n), score, words.partition.n_words, k
        )
    shares = (log_cluster + score.reshape(-1, 1)).view(score.shape[0], score.shape[1] * log_cluster.shape[1])
    return _answer(words, hidden, shares, k)


def together(
    best: Callable[[Tensor, int], tuple[Tensor, Tensor]], score: Tensor, n_words: int, k: int
) -> tuple[Tensor, Tensor]:
    """As `extend`, from the best words of every hypothesis: `best` finds n each of some rows, (A,) → both (A, n)."""
    n_each, n_hypotheses = min(k, n_words), score.shape[1]
    values = score.new_full((score.numel(), n_each), -torch.inf)
    indices = torch.zeros(values.shape, dtype=torch.int64, device=score.device)
    there = score.flatten() > -torch.inf
    if score.is_cuda or torch.compiler.is_compiling():
        rows = torch.arange(score.numel(), device=score.device)  # all: to ask which are there, the host would wait
    else:
        rows = there.nonzero().squeeze(1)
    if rows.numel():
        log_prob, found = best(rows, n_each)
        found_values = log_prob.to(values.dtype) + score.flatten()[rows, None]
        values[rows] = torch.where(there[rows, None], found_values, -torch.inf)
        indices[rows] = found + (rows % n_hypotheses * n_words)[:, None]
    values, places = values.view(-1, n_hypotheses * n_each).topk(k, 1)
    return values, indices.view(-1, n_hypotheses * n_each).gather(1, places)


def _answer(words: Words, hidden: Tensor, log_cluster: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and extensions, both (T, k): those that `attempt` finds, all others densely.

    `hidden` (T · B, D), `log_cluster` (T, B · C).
    """
    values, indices = attempt(words, hidden, log_cluster, k)
    unfinished = (values[:, -1] == -torch.inf).nonzero().squeeze(1)
    if not unfinished.numel():
        return values, indices
    n_hypotheses = hidden.shape[0] // log_cluster.shape[0]
    hidden, shares = _of(hidden, unfinished, n_hypotheses), log_cluster[unfinished]
    if n_hypotheses == 1:
        values[unfinished], indices[unfinished] = _dense(words, hidden, shares, k)
        return values, indices
    shares = shares.view(-1, words.partition.n_clusters)
    there = torch.where((shares > -torch.inf).any(1), 0.0, -torch.inf).view(-1, n_hypotheses)
    values[unfinished], indices[unfinished] = together(
        lambda rows, n: _dense(words, hidden[rows], shares[rows], n), there.to(values.dtype), words.partition.n_words, k
    )
    return values, indices


def _dense(words: Words, hidden: Tensor, log_cluster: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Of rows, `hidden` (T, D) and `log_cluster` (T, C), over all words: both (T, k)."""
    if hidden.shape[0] < MANY_ROWS:
        values, indices = words.log_prob(hidden, log_cluster).topk(k, -1)
        return values, indices
    partition = words.partition
    if SPARED * k * partition.capacity <= partition.n_words:
        return _dense_by_cluster(words, hidden, log_cluster, k)
    values, indices = words.log_prob_in_order(hidden, log_cluster).topk(k, -1)
    return values, partition.words[indices]


def _dense_by_cluster(words: Words, hidden: Tensor, log_cluster: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The same for many rows: the k best words are in the k clusters whose best words are best, and those of the others
    are neither written nor sorted."""
    partition = words.partition
    by_word = words.logits_by_word(hidden)  # (V, T)
    best, mass = words.heads_of_clusters(by_word)  # (T, C)
    clusters = (best + log_cluster).topk(min(k, partition.n_clusters), -1).indices  # (T, k)
    sizes, offsets = partition.sizes[clusters], partition.offsets[clusters]
    column = torch.arange(int(sizes.max()), device=sizes.device)  # (S,)
    inside = column < sizes[..., None]  # (T, k, S)
    place = (offsets[..., None] + column).clamp_(max=partition.n_words - 1)
    found = partition.words.index_select(0, place.flatten()).view(hidden.shape[0], -1)  # (T, k · S)
    rows = torch.arange(hidden.shape[0], device=hidden.device)[:, None]
    log_prob = by_word.reshape(-1).index_select(0, (found * rows.numel() + rows).flatten()).view(inside.shape)
    log_prob += (log_cluster - mass).gather(1, clusters)[..., None]
    values, places = log_prob.masked_fill_(~inside, -torch.inf).flatten(1).topk(k, -1)
    return values, found.gather(1, places)


def _of(hidden: Tensor, questions: Tensor, n_hypotheses: int) -> Tensor:
    """The hidden vectors of some questions (N,): (T · B, D) → (N · B, D)."""
    if n_hypotheses == 1:
        return hidden[questions]
    return hidden.view(-1, n_hypotheses, hidden.shape[1])[questions].flatten(0, 1)


def attempt(words: Words, hidden: Tensor, log_cluster: Tensor, k: int, limit: float = 1.0) -> tuple[Tensor, Tensor]:
    """As `_answer`, without what costs less to answer densely: its last value is -inf.

    `limit`: the share of the dense cost that may be spent once it is certain to suffice; a trial goes before.
    """
    n_questions, n_rows = log_cluster.shape[0], hidden.shape[0]
    values = log_cluster.new_full((n_questions, k), -torch.inf)
    indices = torch.zeros((n_questions, k), dtype=torch.int64, device=hidden.device)
    too_many = k * FETCH >= TRIAL * dense_cost(words, n_rows)
    many = n_questions > 4 * PILOTS
    if not n_rows or too_many or words.partition.n_words < (4 * SMALL if many else SMALL):
        return values, indices
    if many:
        # A few go first, and tell how many clusters all of them together will have opened.
        few = torch.arange(PILOTS, device=hidden.device) * (n_questions // PILOTS)
        tried, _ = attempt(words, _of(hidden, few, n_rows // n_questions), log_cluster[few], k, limit=0)
        share = float((log_cluster[few] > tried[:, -1:]).double().mean())  # of the clusters, a row
        by_any = 1 - (1 - share) ** n_rows  # of the clusters, all rows
        opened = words.partition.n_words * (FETCH * by_any + 2 * share * n_rows)
        opened += min(words.partition.n_words * n_rows, ASKING * words.partition.n_clusters) * by_any
        if opened > WORTH * dense_cost(words, n_rows):
            return values, indices
    search = _one_question if n_questions == 1 else _by_waves
    search(words, hidden, log_cluster, values, indices, limit)
    return values, indices


def dense_cost(words: Words, n_rows: int) -> int:
    """Of computing all words of some rows."""
    return words.partition.n_words * (STREAM + n_rows)


def opening_cost(sizes: Tensor, cluster: Tensor, n_rows: Tensor | int) -> int:
    """Of clusters (P,) that so many rows ask for, each fetched once; `sizes` (C,)."""
    asked = torch.bincount(cluster, minlength=sizes.numel())
    opened = asked > 0
    # A product and a place among the best for every word of every row, and products nobody asked for, or calls.
    counted = sizes * (FETCH * opened + 2 * asked), sizes * opened * (n_rows - asked), opened
    wanted, unasked, calls = torch.stack(counted).sum(1).tolist()
    return int(wanted + min(unasked, ASKING * calls))


def cost_in_parts(sizes: Tensor, left: tuple[Tensor, Tensor, Tensor], end: int, width: int) -> int:
    """Of the first `end` places of what is left, so many at a time; `left`: cluster, row, and whether the one is asked
    for by the other, (A, W) each."""
    parts = zip(*(part[:, :end].split(width, 1) for part in left), strict=True)
    return sum(opening_cost(sizes, c[asked], (torch.bincount(r[asked]) > 0).sum()) for c, r, asked in parts)


def _one_question(
    words: Words, hidden: Tensor, log_cluster: Tensor, values: Tensor, indices: Tensor, limit: float
) -> None:
    """Asked alone, a few pairs at a time: writes what it finds to values and indices (1, k). `hidden` (B, D)."""
    n_words, n_clusters = words.partition.n_words, words.partition.n_clusters
    ordered, by_rank = log_cluster[0].sort(descending=True)  # (B · C,)
    ranked, pairs = ordered.tolist(), by_rank.tolist()
    dense, best, found, worst = dense_cost(words, hidden.shape[0]), values[0], indices[0], -math.inf
    opened = [0, *words.partition.sizes[by_rank % n_clusters].cumsum(0).tolist()]  # words of the first pairs
    together = min(TOGETHER, n_words >> 6)
    allowance, rank, looked = TRIAL * dense, 0, False
    while rank < len(pairs) and ranked[rank] > worst:
        # Clusters more probable than the k-th best word may hold a better one.
        last = bisect.bisect_left(ranked, -worst, rank, key=operator.neg)
        end = min(bisect.bisect_left(opened, opened[rank] + max(together, opened[rank] // 2)), last)
        allowance -= (opened[end] - opened[rank]) * (FETCH + hidden.shape[0])
        if (rank >= FIRST_LOOK and not looked) or allowance < 0:
            looked, in_question = True, opened[last] - opened[rank]
            flat = 2 * in_question > n_words * hidden.shape[0]
            if in_question * (FETCH + hidden.shape[0]) > limit * dense and (allowance < 0 or flat):
                return
            allowance = allowance if allowance >= 0 else math.inf
        members = {pair % n_clusters: words.members(pair % n_clusters) for pair in pairs[rank:end]}
        logits = words.logits_of(hidden, torch.cat(list(members.values())))  # of all hypotheses: the vectors are here
        parts = dict(zip(members, logits.split([ids.numel() for ids in members.values()], 1), strict=True))
        log_p, extensions = [best], [found]
        for pair, share in zip(pairs[rank:end], ranked[rank:end], strict=True):
            hypothesis, c = divmod(pair, n_clusters)
            log_p.append(parts[c][hypothesis].log_softmax(0).add_(share))
            extensions.append(members[c] + hypothesis * n_words if hypothesis else members[c])
        best, places = torch.cat(log_p).topk(values.shape[1])
        found = torch.cat(extensions)[places]
        worst, rank = float(best[-1]), end
    values[0], indices[0] = best, found


def _by_waves(words: Words, hidden: Tensor, log_cluster: Tensor, values: Tensor, indices: Tensor, limit: float) -> None:
    """All questions together, each time twice as many of their next pairs: writes to values and indices (T, k)."""
    n_questions, k = values.shape
    n_rows, n_hypotheses = hidden.shape[0], hidden.shape[0] // n_questions
    ranked, by_rank = log_cluster.sort(1, descending=True)  # (T, B · C)
    clusters = by_rank if n_hypotheses == 1 else by_rank % words.partition.n_clusters
    rows = (
        torch.arange(n_questions, device=hidden.device)[:, None] * n_hypotheses + by_rank // words.partition.n_clusters
    )
    sizes, n_words = words.partition.sizes, words.partition.n_words * n_hypotheses
    allowance = (WORTH if n_questions > 4 * PILOTS else TRIAL) * dense_cost(words, n_rows)
    active = torch.arange(n_questions, device=hidden.device)
    # As many pairs as hypotheses at first, if the trial allows it: one at a time, clusters would be fetched again.
    rank, width, growth, given_up, looked = 0, n_hypotheses, 2, 0, False
    while rank < ranked.shape[1]:
        # (A, B · C - rank): clusters more probable than the k-th best word may hold a better one.
        in_question = ranked[active, rank:] > values[active, -1:]
        going = in_question[:, 0]
        if rank >= FIRST_LOOK and not looked:
            looked = True
            flat = (sizes[clusters[active, rank:]] * in_question).sum(1) * 2 > n_words
            values[active[flat]] = -torch.inf
            given_up = int(flat.sum())
            going = going & ~flat
        active, in_question = active[going], in_question[going]
        if not active.numel():
            break
        room = max(1, MOST_FOUND // (active.numel() * words.partition.capacity))
        width = min(width, room)
        left = clusters[active, rank:], rows[active, rank:], in_question  # (A, B · C - rank)
        cost = cost_in_parts(sizes, left, width, width)
        if cost > allowance and not rank:
            width = 1
            cost = cost_in_parts(sizes, left, width, width)
        if cost > allowance:
            # Either it is certain that all that is left costs less than all words, or nothing of it is tried. In parts:
            # what is found in one puts others out of the question. At once, if clusters would be fetched too often.
            longest = int(in_question.sum(1).max())
            certain = limit * dense_cost(words, (given_up + active.numel()) * n_hypotheses)
            certain -= dense_cost(words, given_up * n_hypotheses) if given_up else 0
            for parts in (PARTS, 1):
                width = -(-longest // parts)
                if width <= room and cost_in_parts(sizes, left, longest, width) <= certain:
                    break
            else:
                values[active] = -torch.inf
                break
            allowance, growth = math.inf, 1
        allowance -= cost
        pairs, asked = by_rank[active, rank : rank + width], in_question[:, :width]  # (A, W)
        found_values, found = _open_wave(words, hidden, log_cluster, active, pairs, asked, k)
        best = torch.cat((values[active], found_values), 1).topk(k, 1)
        values[active] = best.values
        indices[active] = torch.cat((indices[active], found), 1).gather(1, best.indices)
        rank, width = rank + width, growth * width


def _open_wave(
    words: Words, hidden: Tensor, log_cluster: Tensor, active: Tensor, pairs: Tensor, asked: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """The best extensions by the pairs (A, W) of the active questions (A,) where asked for: (A, W · min(k, S)) each."""
    at, column = asked.nonzero(as_tuple=True)  # (P,)
    pair, question = pairs[at, column], active[at]
    hypothesis, cluster = pair // words.partition.n_clusters, pair % words.partition.n_clusters
    row = question * (hidden.shape[0] // log_cluster.shape[0]) + hypothesis
    log_prob, members = words.open(hidden, row, cluster)  # (P, S)
    best = log_prob.topk(min(k, log_prob.shape[1]), 1)
    values = log_cluster.new_full((*pairs.shape, best.values.shape[1]), -torch.inf)
    extensions = torch.zeros(values.shape, dtype=torch.int64, device=hidden.device)
    values[at, column] = best.values + log_cluster[question, pair, None]
    extensions[at, column] = members.gather(1, best.indices) + hypothesis[:, None] * words.partition.n_words
    return values.flatten(1), extensions.flatten(1)
