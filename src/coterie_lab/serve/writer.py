"""How a summarizer finds a title: the titles of its beam, and the beam at every step.

Shapes: B hypotheses, S words of the sentence.
"""

import math
from dataclasses import dataclass

import torch

from coterie_lab.models.beam import Step, search
from coterie_lab.tasks.summarization.generate import Decoding, write_down
from coterie_lab.tasks.summarization.trained import Trained

WORDS = 250  # of a sentence that are read, even by a model that could read more


@dataclass(frozen=True)
class Grown:
    """A hypothesis, by its last word."""

    before: int | None  # its place in the step before; None: it begins here
    word: str
    ends: bool  # whether the word is the end
    p: float  # of the word, after those before it
    log_prob: float  # of all words so far
    looked: list[float]  # (S,) how much at each word of the sentence


@dataclass(frozen=True)
class Title:
    """A title that was found."""

    text: str
    log_prob: float
    ended: bool  # False: there was no room for more words
    path: list[int]  # its place in each step


@dataclass(frozen=True)
class Written:
    """Everything about the titles of one sentence."""

    read: list[tuple[str, bool]]  # its words, and whether the model knows them
    unread: int  # words too many
    titles: list[Title]  # best first
    steps: list[list[Grown]]  # those that lived, best first


class Writer:
    """Answers one question at a time, from one thread."""

    def __init__(self, trained: Trained) -> None:
        self.trained = trained
        trained.split("word")  # a tokenizer that is not installed is missed now, not at the first question

    def write(self, text: str, beam: int) -> Written:
        """The titles of a sentence, searched for as `coterie summarize generate` does; none if it has no words."""
        every = self.trained.split(text)
        sentence = every[: min(self.trained.longest, WORDS)]
        if not sentence:
            return Written([], 0, [], [])
        ids = torch.tensor([self.trained.ids(sentence)], device=self.trained.device)  # (1, S)
        length = torch.tensor([len(sentence)], device=self.trained.device)
        watched: list[Step] = []
        usual = Decoding()
        [found] = search(
            self.trained.model, ids, length,
            beam=beam, longest=usual.longest, penalty=usual.penalty, watch=watched.append,
        )  # fmt: skip
        steps, paths = self._steps(watched)
        titles = [
            Title(
                write_down(self.trained, sentence, one, replace_unknown=False), one.log_prob, one.ended,
                paths[(*one.words, self.trained.model.eos) if one.ended else tuple(one.words)],
            )
            for one in found
        ]  # fmt: skip
        read = [(word, word in self.trained.id_of) for word in sentence]
        return Written(read, len(every) - len(sentence), titles, steps)

    def _steps(self, watched: list[Step]) -> tuple[list[list[Grown]], dict[tuple[int, ...], list[int]]]:
        """The hypotheses of every step, and of each, by its words, its place in every step so far."""
        steps: list[list[Grown]] = []
        paths: dict[tuple[int, ...], list[int]] = {}
        before: list[tuple[int, ...]] = [()]  # the words of each hypothesis
        for step in watched:
            scores = step.log_prob[0].tolist()
            lived = sum(score > -math.inf for score in scores)  # they come first
            parents, words = step.parent[0, :lived].tolist(), step.word[0, :lived].tolist()
            looked = step.attention[0].tolist()  # (B, S)
            now, rows = [], []
            for place, (parent, word) in enumerate(zip(parents, words, strict=True)):
                so_far = (*before[parent], word)
                since = scores[place] - (steps[-1][parent].log_prob if steps else 0.0)
                now.append(so_far)
                paths[so_far] = [*paths.get(before[parent], []), place]
                rows.append(
                    Grown(
                        parent if steps else None, self.trained.words[word], word == self.trained.model.eos,
                        min(1.0, math.exp(since)), scores[place], [round(share, 4) for share in looked[parent]],
                    )
                )  # fmt: skip
            steps.append(rows)
            before = now
        return steps, paths
