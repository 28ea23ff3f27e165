"""Exact search without computing all V words: the k best words of a row, or the k best extensions of a beam.

A word is never more probable than its cluster, P(w|h) ≤ P(c|h). So the search opens clusters (computes their words) in
descending P(c|h), and is done with a row once its k-th best word is more probable than the next cluster. A beam search
wants the k best extensions of several hypotheses together: then the bound of a hypothesis and a cluster is P(c|h) times
the probability of the hypothesis. Words that stand alone need no opening: the search begins with the best of them.

A flat distribution would need nearly all clusters, which is slower than one large product. Therefore, after a trial
at a small share of the dense cost, rows that are not done are computed densely, unless their remaining clusters are
certain to cost less.

Costs are counted in products of one hidden vector with one word vector.

Shapes: T questions, B hypotheses of each (1 in `topk`), D width, V words, C clusters, N places for words that stand
alone, R = C + N columns of the root, S words of a cluster, k results, P pairs of a hypothesis and a cluster to open. A
pair is the number b · C + c, an extension the number b · V + w.
"""

import bisect
import math
import operator
from collections.abc import Callable

import torch
from torch import Tensor

from coterie.search.words import ASKING, MANY_ROWS, Words, on_gpu

# The cost of reading a word's vector: gathered by index, or streamed in one large product.
FETCH, STREAM = 20, 5
# Below this many words a dense product takes less time than starting a search; four times as many for many rows.
SMALL = 1 << 15
# The share of the dense cost to spend before it is known whether searching costs less.
TRIAL = 0.15
# If half of the vocabulary is still in question after this many clusters, the row is flat and computed densely.
FIRST_LOOK = 3
# For one row, open at least so many words at a time, and half as many as are open already. Some might not have been
# needed, but opening a cluster has an overhead as large as fetching a few hundred words.
TOGETHER = 1024
# So many rows of a batch are searched first, to estimate the cost of all. The search must promise this share of the
# dense cost or less: rows differ, and the dense cost is certain.
PILOTS, WORTH = 4, 0.6
# The clusters that remain after the trial are opened in so many parts.
PARTS = 2
# Sort only the words of k clusters if they are so many times fewer than all words.
SPARED = 8
# The most numbers in one wave, (pairs, words of a cluster), to limit memory.
MOST_FOUND = 1 << 24


def topk(words: Words, hidden: Tensor, log_root: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most probable words, best first: log P(w|h) and the words, both (T, k).

    `hidden` (T, D), `log_root` (T, R); on a GPU, its logits suffice.
    """
    if gpu := on_gpu(words, hidden):
        return gpu.topk(hidden, log_root, k)
    if hidden.is_cuda or torch.compiler.is_compiling():
        values, indices = words.log_prob(hidden, log_root).topk(k, -1)
        return values, indices
    return _search(words, hidden, log_root, k)


def extend(words: Words, hidden: Tensor, log_root: Tensor, score: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best extensions of B hypotheses together, best first: log P of hypothesis and word, and b · V + w, (T, k).

    `hidden` (T · B, D); `log_root` (T · B, R), on a GPU its logits suffice; `score` (T, B): log P of each
    hypothesis, -inf for an unused place.
    """
    score = score.to(torch.promote_types(score.dtype, torch.float32))
    if (gpu := on_gpu(words, hidden)) and (found := gpu.extend(hidden, log_root, score, k)):
        return found
    if hidden.is_cuda or torch.compiler.is_compiling():
        return together(lambda rows, n: topk(words, hidden[rows], log_root[rows], n), score, words.partition.n_words, k)
    shares = (log_root + score.reshape(-1, 1)).view(score.shape[0], score.shape[1] * log_root.shape[1])
    return _search(words, hidden, shares, k)


def together(
    best: Callable[[Tensor, int], tuple[Tensor, Tensor]], score: Tensor, n_words: int, k: int
) -> tuple[Tensor, Tensor]:
    """The same as `extend`, merged from the best words of each row: `best` maps rows (A,) and n to both (A, n)."""
    n_each, n_hypotheses = min(k, n_words), score.shape[1]
    values = score.new_full((score.numel(), n_each), -torch.inf)
    indices = torch.zeros(values.shape, dtype=torch.int64, device=score.device)
    there = score.flatten() > -torch.inf
    if score.is_cuda or torch.compiler.is_compiling():
        rows = torch.arange(score.numel(), device=score.device)  # all of them: selecting would synchronise
    else:
        rows = there.nonzero().squeeze(1)
    if rows.numel():
        log_prob, found = best(rows, n_each)
        found_values = log_prob.to(values.dtype) + score.flatten()[rows, None]
        values[rows] = torch.where(there[rows, None], found_values, -torch.inf)
        indices[rows] = found + (rows % n_hypotheses * n_words)[:, None]
    values, places = values.view(-1, n_hypotheses * n_each).topk(k, 1)
    return values, indices.view(-1, n_hypotheses * n_each).gather(1, places)


def _search(words: Words, hidden: Tensor, log_root: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and extensions, both (T, k): by search where `attempt` succeeds, densely elsewhere.

    `hidden` (T · B, D), `log_root` (T, B · R).
    """
    values, indices = attempt(words, hidden, log_root, k)
    unfinished = (values[:, -1] == -torch.inf).nonzero().squeeze(1)
    if not unfinished.numel():
        return values, indices
    n_hypotheses = hidden.shape[0] // log_root.shape[0]
    hidden, shares = _rows_of(hidden, unfinished, n_hypotheses), log_root[unfinished]
    if n_hypotheses == 1:
        values[unfinished], indices[unfinished] = _dense(words, hidden, shares, k)
        return values, indices
    shares = shares.view(-1, words.partition.root_sizes.numel())
    there = torch.where((shares > -torch.inf).any(1), 0.0, -torch.inf).view(-1, n_hypotheses)
    values[unfinished], indices[unfinished] = together(
        lambda rows, n: _dense(words, hidden[rows], shares[rows], n), there.to(values.dtype), words.partition.n_words, k
    )
    return values, indices


def _dense(words: Words, hidden: Tensor, log_root: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of all words, computed for rows `hidden` (T, D) and `log_root` (T, R): both (T, k)."""
    if hidden.shape[0] < MANY_ROWS:
        values, indices = words.log_prob(hidden, log_root).topk(k, -1)
        return values, indices
    partition = words.partition
    if SPARED * k * partition.capacity <= partition.n_words:
        return _dense_by_cluster(words, hidden, log_root, k)
    values, indices = words.log_prob_in_order(hidden, log_root).topk(k, -1)
    return values, partition.words[indices]


def _dense_by_cluster(words: Words, hidden: Tensor, log_root: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The same for many rows: the k best words lie in the k clusters with the best words, so only those are sorted."""
    partition = words.partition
    log_cluster, start = _apart(words, log_root, k)
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
    log_prob = log_prob.masked_fill_(~inside, -torch.inf).flatten(1)
    values, places = torch.cat((start[0], log_prob), 1).topk(k, -1)
    return values, torch.cat((start[1], found), 1).gather(1, places)


def _apart(words: Words, log_root: Tensor, k: int, n_hypotheses: int = 1) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The clusters, (T, B · R) → (T, B · C), and the k best of the words that stand alone.

    Of those the values and the extensions, (T, k) both; -inf where there are fewer.
    """
    partition = words.partition
    n_questions = log_root.shape[0]
    values = log_root.new_full((n_questions, k), -torch.inf)
    extensions = torch.zeros((n_questions, k), dtype=torch.int64, device=log_root.device)
    if not partition.n_own:
        return log_root, (values, extensions)
    parts = (partition.n_clusters, partition.n_own)
    clusters, alone = log_root.view(n_questions, n_hypotheses, sum(parts)).split(parts, 2)
    n_found = min(k, n_hypotheses * partition.n_own)
    values[:, :n_found], places = alone.flatten(1).topk(n_found, 1)
    hypotheses = torch.arange(n_hypotheses, device=log_root.device)[:, None]
    extensions[:, :n_found] = (partition.slots + hypotheses * partition.n_words).flatten()[places]
    return clusters.flatten(1), (values, extensions)


def _rows_of(hidden: Tensor, questions: Tensor, n_hypotheses: int) -> Tensor:
    """The hidden vectors of some `questions` (N,): (T · B, D) → (N · B, D)."""
    if n_hypotheses == 1:
        return hidden[questions]
    return hidden.view(-1, n_hypotheses, hidden.shape[1])[questions].flatten(0, 1)


def attempt(words: Words, hidden: Tensor, log_root: Tensor, k: int, limit: float = 1.0) -> tuple[Tensor, Tensor]:
    """The same as `_search`, but only for questions that are cheaper to search: the others' last value is -inf.

    `limit`: the share of the dense cost to spend after the trial, if it is certain to suffice.
    """
    n_questions, n_rows = log_root.shape[0], hidden.shape[0]
    values = log_root.new_full((n_questions, k), -torch.inf)
    indices = torch.zeros((n_questions, k), dtype=torch.int64, device=hidden.device)
    too_many = k * FETCH >= TRIAL * dense_cost(words, n_rows)
    many = n_questions > 4 * PILOTS
    if not n_rows or too_many or words.partition.n_words < (4 * SMALL if many else SMALL):
        return values, indices
    if many:
        # Search a few first, to estimate how many clusters all of them together will open.
        few = torch.arange(PILOTS, device=hidden.device) * (n_questions // PILOTS)
        tried, _ = attempt(words, _rows_of(hidden, few, n_rows // n_questions), log_root[few], k, limit=0)
        few_clusters, _ = _apart(words, log_root[few], k, n_rows // n_questions)
        share = float((few_clusters > tried[:, -1:]).double().mean())  # of the clusters, a row
        by_any = 1 - (1 - share) ** n_rows  # of the clusters, all rows
        opened = words.partition.n_words * (FETCH * by_any + 2 * share * n_rows)
        opened += min(words.partition.n_words * n_rows, ASKING * words.partition.n_clusters) * by_any
        if opened > WORTH * dense_cost(words, n_rows):
            return values, indices
    log_cluster, (values[:], indices[:]) = _apart(words, log_root, k, n_rows // n_questions)
    search = _one_question if n_questions == 1 else _by_waves
    search(words, hidden, log_cluster, values, indices, limit)
    return values, indices


def dense_cost(words: Words, n_rows: int) -> int:
    """The cost of computing all words for some rows."""
    return words.partition.n_words * (STREAM + n_rows)


def opening_cost(sizes: Tensor, cluster: Tensor, n_rows: Tensor | int) -> int:
    """The cost of opening the clusters of pairs, `cluster` (P,), each fetched once for all rows; `sizes` (C,)."""
    asked = torch.bincount(cluster, minlength=sizes.numel())
    opened = asked > 0
    # Each word of a pair costs a product and a comparison. Then either one product of all rows with all these words,
    # which computes some that no row needs, or one call per cluster.
    counted = sizes * (FETCH * opened + 2 * asked), sizes * opened * (n_rows - asked), opened
    wanted, unasked, calls = torch.stack(counted).sum(1).tolist()
    return int(wanted + min(unasked, ASKING * calls))


def cost_in_parts(sizes: Tensor, left: tuple[Tensor, Tensor, Tensor], end: int, width: int) -> int:
    """The cost of opening the first `end` columns of `left`, `width` at a time.

    `left`: clusters, rows, and whether each row still needs the cluster, (A, W) each."""
    parts = zip(*(part[:, :end].split(width, 1) for part in left), strict=True)
    return sum(opening_cost(sizes, c[asked], (torch.bincount(r[asked]) > 0).sum()) for c, r, asked in parts)


def _one_question(
    words: Words, hidden: Tensor, log_cluster: Tensor, values: Tensor, indices: Tensor, limit: float
) -> None:
    """Searches for a single question, a few pairs at a time; `values` and `indices` (1, k) begin with words that stand
    alone, and end with the best, or with -inf if it gives up. `hidden` (B, D)."""
    n_words, n_clusters = words.partition.n_words, words.partition.n_clusters
    ordered, by_rank = log_cluster[0].sort(descending=True)  # (B · C,)
    ranked, pairs = ordered.tolist(), by_rank.tolist()
    dense, best, found = dense_cost(words, hidden.shape[0]), values[0], indices[0]
    opened = [0, *words.partition.sizes[by_rank % n_clusters].cumsum(0).tolist()]  # words of the first pairs
    together = min(TOGETHER, n_words >> 6)
    worst, allowance, rank, looked = float(best[-1]), TRIAL * dense, 0, False
    while rank < len(pairs) and ranked[rank] > worst:
        # Clusters more probable than the k-th best word may hold a better one.
        last = bisect.bisect_left(ranked, -worst, rank, key=operator.neg)
        end = min(bisect.bisect_left(opened, opened[rank] + max(together, opened[rank] // 2)), last)
        allowance -= (opened[end] - opened[rank]) * (FETCH + hidden.shape[0])
        if (rank >= FIRST_LOOK and not looked) or allowance < 0:
            looked, in_question = True, opened[last] - opened[rank]
            flat = 2 * in_question > n_words * hidden.shape[0]
            if in_question * (FETCH + hidden.shape[0]) > limit * dense and (allowance < 0 or flat):
                values.fill_(-torch.inf)
                return
            allowance = allowance if allowance >= 0 else math.inf
        members = {pair % n_clusters: words.members(pair % n_clusters) for pair in pairs[rank:end]}
        logits = words.logits_of(hidden, torch.cat(list(members.values())))  # for all hypotheses: fetching costs most
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
    """The same for all questions together, (T, k), in waves, each of twice as many pairs."""
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
    # Start with as many pairs as hypotheses if the trial allows it: one at a time would fetch clusters repeatedly.
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
            # Go on only if the rest is certain to cost less than all words. Preferably in parts, since words found in
            # one rule out clusters of the next; in one part, if several would fetch clusters too often.
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
    """Opens the pairs (A, W) of active questions (A,) where `asked`; returns their best: (A, W · min(k, S)) each."""
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
