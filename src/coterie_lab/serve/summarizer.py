"""What the service answers about a summarizer; what it takes and gives is in its OpenAPI description."""

from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException
from pydantic import BaseModel, Field

from coterie_lab.serve.fields import Probability, Read, Strict, Whole
from coterie_lab.serve.worker import Worker
from coterie_lab.serve.writer import Writer
from coterie_lab.tasks.summarization.trained import Trained
from coterie_lab.training.settings import Device


class Sentence(Strict):
    """What to find a title for."""

    text: str = Field(min_length=1, max_length=4000, description="a sentence")
    beam: Whole = Field(5, ge=1, le=10, description="how many hypotheses are kept while searching")


class Hypothesis(BaseModel):
    """The beginning of a title, by its last word."""

    before: int | None = Field(description="the place, in the step before, of what it goes on from; null: it begins")
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


def router(run: Path, device: Device, worker: Worker, problems: dict[int | str, dict[str, Any]]) -> APIRouter:
    """The routes of a run's model."""
    writer = Writer(Trained.open(run, device))
    routes = APIRouter(prefix="/api")

    @routes.post("/summarize", responses={404: {**problems[422], "description": "no word in it"}, **problems})
    async def summarize(asked: Sentence) -> Summary:
        """The titles that a beam search finds for a sentence, and the beam at every step."""

        def answer() -> Summary:
            found = writer.write(asked.text, asked.beam)
            return Summary(
                read=[Read(word=word, known=known) for word, known in found.read],
                unread=found.unread,
                titles=[Title(**vars(title)) for title in found.titles],
                steps=[[Hypothesis(**vars(one)) for one in step] for step in found.steps],
            )

        found = await worker(answer)
        if not found.read:
            raise HTTPException(404, "there is no word in this sentence: give one with words")
        return found

    return routes
