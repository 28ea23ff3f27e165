"""What the service answers about a language model; what it takes and gives is in its OpenAPI description."""

from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException
from pydantic import BaseModel, Field

from coterie_lab.serve.fields import Probability, Read, Strict, Whole
from coterie_lab.serve.predictor import Predictor
from coterie_lab.serve.worker import Worker
from coterie_lab.tasks.language.trained import Trained
from coterie_lab.training.settings import Device


class Beginning(Strict):
    """What to go on from."""

    text: str = Field("", max_length=4000, description="the beginning of a text; empty: what is expected anywhere")
    words: Whole = Field(20, ge=1, le=100, description="how many of the most probable words to name")


class Opening(Strict):
    """Which cluster to open."""

    text: str = Field("", max_length=4000)
    cluster: Whole = Field(ge=0, le=2**31 - 1)


class ClusterChance(BaseModel):
    """P(c|h)."""

    cluster: int
    p: Probability


class WordChance(BaseModel):
    """P(w|h), or in an opened cluster P(w|c, h)."""

    word: str
    p: Probability


class Prediction(BaseModel):
    """What the model expects; the clusters' probabilities sum to one."""

    read: list[Read]
    clusters: list[ClusterChance] = Field(description="all that have words, most probable first; none: no such head")
    words: list[WordChance] = Field(description="the most probable words of all, P(w|h)")


class Opened(BaseModel):
    """A cluster and its words, whose probabilities sum to one."""

    cluster: int
    p: Probability
    words: list[WordChance]


def router(run: Path, device: Device, worker: Worker, problems: dict[int | str, dict[str, Any]]) -> APIRouter:
    """The routes of a run's model."""
    predictor = Predictor(Trained.open(run, device))
    routes = APIRouter(prefix="/api")

    @routes.post("/predict", responses=problems)
    async def predict(asked: Beginning) -> Prediction:
        """What comes after a beginning: P(c|h) of every cluster, and the most probable words."""

        def answer() -> Prediction:
            return Prediction(
                read=[Read(word=word, known=known) for word, known in predictor.read(asked.text)],
                clusters=[ClusterChance(cluster=c, p=p) for c, p in predictor.clusters(asked.text)],
                words=[WordChance(word=word, p=p) for word, p in predictor.words(asked.text, asked.words)],
            )

        return await worker(answer)

    @routes.post("/open", responses={404: {**problems[422], "description": "no such cluster"}, **problems})
    async def open_cluster(asked: Opening) -> Opened:
        """The words of one cluster, P(w|c, h)."""

        def answer() -> Opened:
            p, words = predictor.open(asked.text, asked.cluster)
            return Opened(cluster=asked.cluster, p=p, words=[WordChance(word=word, p=p) for word, p in words])

        try:
            return await worker(answer)
        except LookupError as error:
            raise HTTPException(404, str(error)) from None

    return routes
