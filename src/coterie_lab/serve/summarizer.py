"""How a summarizer finds a title: its beam at every step, and the titles found; described by OpenAPI.

Shapes: B hypotheses, S words of the sentence.
"""

import math
from pathlib import Path
from typing import Any

import torch
from fastapi import APIRouter, HTTPException
from pydantic import BaseModel, Field

from coterie_lab.models.beam import Step, search
from coterie_lab.serve.fields import Probability, Read, Strict, Whole
from coterie_lab.serve.worker import Worker
from coterie_lab.tasks.summarization.settings import Decoding
from coterie_lab.tasks.summarization.trained import Trained
from coterie_lab.training.settings import Device

WORDS = 250  # of a sentence that are read, even by a model that could read more


class Sentence(Strict):
    """What to find a title for."""

    text: str = Field(min_length=1, max_length=4000, description="a sentence")
    beam: Whole = Field(5, ge=1, le=10, description="how many hypotheses are kept while searching")


class Hypothesis(BaseModel):
    """An unfinished title, by its last word."""

    before: int | None = Field(description="the place, in the step before, of what it continues; null: it begins")
    word: str
    ends: bool = Field(description="whether the word is the end of the title")
    p: Probability = Field(description="of the word, after those before it")
    log_prob: float = Field(description="log P of all words so far")
    looked: list[Probability] = Field(description="the attention to each word that was read; sums to one")


class Title(BaseModel):
    """A title that was found."""

    text: str
    log_prob: float = Field(description="log P of all its words, and of its end if there is one")
    ended: bool = Field(description="false: there was no room for more words")
    path: list[int] = Field(description="its place in each step")


class Summary(BaseModel):
    """The titles of a sentence, and how they were found."""

    read: list[Read]
    unread: int = Field(description="how many words were too many, and not read")
    titles: list[Title] = Field(description="most probable first")
    steps: list[list[Hypothesis]] = Field(description="a word at a time, the hypotheses that lived, best first")


class Writer:
    """Answers one question at a time, from one thread."""

    def __init__(self, trained: Trained) -> None:
        self.trained = trained
        trained.split("word")  # raises now, not at the first request, if the tokenizer is not installed

    def write(self, text: str, beam: int) -> Summary:
        """The titles of a sentence, by the search of `coterie summarize generate`; none if it has no words."""
        every = self.trained.split(text)
        sentence = every[: min(self.trained.longest, WORDS)]
        if not sentence:
            return Summary(read=[], unread=0, titles=[], steps=[])
        ids = torch.tensor([self.trained.ids(sentence)], device=self.trained.device)  # (1, S)
        length = torch.tensor([len(sentence)], device=self.trained.device)
        watched: list[Step] = []
        usual = Decoding()
        [found] = search(
            self.trained.model, ids, length,
            beam=beam, longest=usual.longest, penalty=usual.penalty, watch=watched.append,
        )  # fmt: skip
        steps, paths = self._steps(watched)
        titles = []
        for one in found:
            path = paths[(*one.words, self.trained.model.eos) if one.ended else tuple(one.words)]
            written = self.trained.write_down(sentence, one, replace_unknown=False)
            titles.append(Title(text=written, log_prob=one.log_prob, ended=one.ended, path=path))
        read = [Read(word=word, known=word in self.trained.id_of) for word in sentence]
        return Summary(read=read, unread=len(every) - len(sentence), titles=titles, steps=steps)

    def _steps(self, watched: list[Step]) -> tuple[list[list[Hypothesis]], dict[tuple[int, ...], list[int]]]:
        """The hypotheses of every step; and for each, by its words, its places in the steps so far."""
        steps: list[list[Hypothesis]] = []
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
                    Hypothesis(
                        before=parent if steps else None, word=self.trained.words[word],
                        ends=word == self.trained.model.eos, p=min(1.0, math.exp(since)), log_prob=scores[place],
                        looked=[round(share, 4) for share in looked[parent]],
                    )
                )  # fmt: skip
            steps.append(rows)
            before = now
        return steps, paths


def router(run: Path, device: Device, worker: Worker, problems: dict[int | str, dict[str, Any]]) -> APIRouter:
    """The routes of a run's model."""
    writer = Writer(Trained.open(run, device))
    routes = APIRouter(prefix="/api")

    @routes.post("/summarize", responses={404: {**problems[422], "description": "no word in it"}, **problems})
    async def summarize(asked: Sentence) -> Summary:
        """The titles that a beam search finds for a sentence, and the beam at every step."""
        found = await worker(lambda: writer.write(asked.text, asked.beam))
        if not found.read:
            raise HTTPException(404, "there is no word in this sentence: give one with words")
        return found

    return routes
