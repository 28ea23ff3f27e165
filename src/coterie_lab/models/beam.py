"""Beam search for the most probable titles, many sentences at a time.

In each step all B hypotheses are extended by one word, and the best extensions are kept. A hypothesis that ends leaves
the beam, which becomes narrower, until none is left. A step needs the B best of B · V extensions: a head with clusters
finds them exactly, and computes only the clusters that may hold one of them.

Shapes: N sentences, B hypotheses of each, S words of a sentence, k candidate words, D width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from coterie.search.exact import together
from coterie.softmax import SelfOrganizedSoftmax
from coterie_lab.heads.registry import Head
from coterie_lab.models.summarizer import Memory, Summarizer, Writing

# hidden (T, D) and k → log P and words of the k most probable, both (T, k)
TopK = Callable[[Tensor, int], tuple[Tensor, Tensor]]
# hidden (N, B, D), log P of the hypotheses (N, B) and k → log P, hypothesis and word of the k best extensions, (N, k)
Extend = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class Hypothesis:
    """A title that was found, without its end."""

    words: list[int]
    looked: list[int]  # which word of the sentence the attention is on, for each
    log_prob: float  # of all words, and of the end if there is one
    ended: bool

    def score(self, penalty: float) -> float:
        """log P, over the length to the power of `penalty`."""
        over: float = float(len(self.words) + self.ended) ** penalty
        return self.log_prob / over


@dataclass
class Beam:
    """The unfinished hypotheses of the sentences that are not done."""

    sentence: Tensor  # (N,) which ones
    memory: Memory
    writing: Writing  # each part (1, N · B, D)
    score: Tensor  # (N, B) log P so far, -inf: no hypothesis
    room: Tensor  # (N,) hypotheses that have not ended
    words: Tensor  # (N, B, t) so far
    looked: Tensor  # (N, B, t)

    def select(self, rows: Tensor) -> "Beam":
        """The beam of some of the sentences, `rows` (n,)."""
        n, b = self.score.shape
        writing = Writing(*(part.view(n, b, -1)[rows].flatten(0, 1)[None] for part in self.writing))
        return Beam(
            self.sentence[rows], self.memory.select(rows), writing, self.score[rows], self.room[rows],
            self.words[rows], self.looked[rows],
        )  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One step of the beam, before finished hypotheses leave it; the best come first in each row."""

    sentence: Tensor  # (N,) which ones
    parent: Tensor  # (N, B) the hypothesis of the previous step
    word: Tensor  # (N, B) the word that extends it
    log_prob: Tensor  # (N, B) of all words so far, -inf: no hypothesis
    attention: Tensor  # (N, B, S) where each hypothesis of the step before looked to find its next word


@torch.no_grad()
def search(
    model: Summarizer,
    article: Tensor,
    length: Tensor,
    *,
    beam: int = 5,
    longest: int = 30,
    end: bool = True,
    penalty: float = 0.0,
    topk: TopK | None = None,
    watch: Callable[[Step], None] | None = None,
) -> list[list[Hypothesis]]:
    """The titles found for each sentence, best first. `article` (N, S), `length` (N,).

    `end`: whether a title may end, after a word at least; otherwise all have exactly `longest` words. `penalty`: how
    much the length counts for a title when the best is chosen. `topk`: in place of the head's own. `watch`: called with
    every step.
    """
    if beam < 1:
        raise ValueError(f"a beam holds one hypothesis at least; got {beam}")
    if longest < 1:
        raise ValueError(f"a title must have room for a word; got {longest} words")
    extend = _extender(model, topk)
    found: list[list[Hypothesis]] = [[] for _ in range(article.shape[0])]
    now = _begin(model, article, length, beam)
    for step in range(longest):
        now, grown = _grow(model, now, extend, end and step > 0)
        if watch is not None:
            watch(grown)
        if end:
            _collect(now, found, now.words[..., -1] == model.eos, True)
        if step == longest - 1:
            _collect(now, found, torch.ones_like(now.score, dtype=torch.bool), False)
        going = (now.score > -torch.inf).any(1)  # (N,)
        n_going = int(going.sum())
        if n_going == 0:
            break
        if n_going <= going.numel() // 2:
            now = now.select(going.nonzero().squeeze(1))
    return [sorted(each, key=lambda one: -one.score(penalty)) for each in found]


def _begin(model: Summarizer, article: Tensor, length: Tensor, beam: int) -> Beam:
    """One empty hypothesis for each sentence."""
    n = article.shape[0]
    memory, empty = model.read(model.embed(article), length)
    writing = Writing(*(part.repeat_interleave(beam, 1) for part in empty))
    score = torch.full((n, beam), -torch.inf, device=article.device)
    score[:, 0] = 0
    nothing = torch.empty((n, beam, 0), dtype=torch.int64, device=article.device)
    room = torch.full((n,), beam, device=article.device)
    return Beam(torch.arange(n, device=article.device), memory, writing, score, room, nothing, nothing)


def _extender(model: Summarizer, topk: TopK | None) -> Extend:
    """The head's `extend`; without one, or if `topk` is given, a merge of the best words of each hypothesis."""
    if topk is None and hasattr(model.head, "extend"):
        return cast(SelfOrganizedSoftmax, model.head).extend
    best, n_words = topk or cast(Head, model.head).topk, model.embedding.num_embeddings

    def extend(hidden: Tensor, score: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        flat = hidden.flatten(0, 1)
        values, found = together(lambda rows, n: best(flat[rows], n), score, n_words, k)
        return values, found // n_words, found % n_words

    return extend


def _grow(model: Summarizer, now: Beam, extend: Extend, end: bool) -> tuple[Beam, Step]:
    """Extends every hypothesis by a word and keeps the best of all extensions."""
    n, b = now.score.shape
    last = now.words[..., -1] if now.words.shape[-1] else torch.full_like(now.score, model.eos, dtype=torch.int64)
    hidden, attention, writing = model.step(model.embed(last), now.writing, now.memory)  # (N, B, D), (N, B, S)
    # If none may end yet, ask for more: the end may be among the best of each hypothesis.
    k = min(b if end else 2 * b, b * model.embedding.num_embeddings)
    total, parent, word = extend(hidden, now.score, k)  # (N, k)
    if not end:
        total = total.masked_fill(word == model.eos, -torch.inf)
        total, places = total.sort(dim=1, descending=True, stable=True)
        parent, word = parent.gather(1, places), word.gather(1, places)
    total, parent, word = total[:, :b], parent[:, :b], word[:, :b]  # (N, B)
    score = total.masked_fill(torch.arange(b, device=parent.device) >= now.room[:, None], -torch.inf)
    rows = (parent + torch.arange(n, device=parent.device)[:, None] * b).flatten()  # (N · B,)
    looked = attention.argmax(-1).gather(1, parent)  # (N, B)

    def grown(before: Tensor, new: Tensor) -> Tensor:
        kept = before.gather(1, parent[..., None].expand(-1, -1, before.shape[-1]))
        return torch.cat((kept, new[..., None]), -1)

    after = Beam(
        now.sentence, now.memory, Writing(*(part[:, rows] for part in writing)), score, now.room,
        grown(now.words, word), grown(now.looked, looked),
    )  # fmt: skip
    return after, Step(now.sentence, parent, word, score, attention)


def _collect(now: Beam, found: list[list[Hypothesis]], which: Tensor, ended: bool) -> None:
    """Moves hypotheses, (N, B), from the beam to the finished ones."""
    which = which & (now.score > -torch.inf)
    rows, slots = which.nonzero(as_tuple=True)
    length = now.words.shape[-1] - ended
    all_words, all_looked = (part[rows, slots, :length].tolist() for part in (now.words, now.looked))
    scores = now.score[rows, slots].tolist()
    for sentence, words, looked, score in zip(now.sentence[rows].tolist(), all_words, all_looked, scores, strict=True):
        found[sentence].append(Hypothesis(words, looked, score, ended))
    now.score = now.score.masked_fill(which, -torch.inf)
    now.room = now.room - which.sum(1)
