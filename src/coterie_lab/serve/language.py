"""The predictions of a language model for a text: a word that stands alone, or a cluster and a word in it; described
by OpenAPI.

Shapes: L words read, D width, S words of a cluster.
"""

from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from fastapi import APIRouter, HTTPException
from pydantic import BaseModel, Field
from torch import Tensor

from coterie import graphs
from coterie.softmax import SelfOrganizedSoftmax
from coterie_lab.data.folder import UNK
from coterie_lab.heads import Head
from coterie_lab.models.language import State
from coterie_lab.serve.fields import Probability, Read, Strict, Whole
from coterie_lab.serve.worker import Worker
from coterie_lab.tasks.language.trained import Trained
from coterie_lab.training.settings import Device

KEPT = 512  # texts whose hidden vectors are cached


class Beginning(Strict):
    """A text to continue."""

    text: str = Field("", max_length=4000, description="the beginning of a text; empty: what is expected anywhere")
    words: Whole = Field(20, ge=1, le=100, description="how many of the most probable words to name")


class Opening(Strict):
    """A text, and the cluster to open."""

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
    """A prediction; the probabilities of clusters and words that stand alone together sum to one."""

    read: list[Read]
    clusters: list[ClusterChance] = Field(description="all that have words, most probable first; none: no such head")
    alone: list[WordChance] = Field(description="the words that stand alone, beside the clusters, most probable first")
    words: list[WordChance] = Field(description="the most probable words of all, P(w|h)")


class Opened(BaseModel):
    """A cluster and its words, whose probabilities sum to one."""

    cluster: int
    p: Probability
    words: list[WordChance]


class Predictor:
    """Answers one question at a time, from one thread."""

    def __init__(self, trained: Trained) -> None:
        self.trained = trained
        head = trained.model.head
        self.head = cast(Head, head)
        self.organized = head if isinstance(head, SelfOrganizedSoftmax) else None
        self.known: OrderedDict[tuple[int, ...], tuple[Tensor, State]] = OrderedDict()
        self.searches: dict[int, graphs.Graph[tuple[Tensor, Tensor]]] = {}  # of the n most probable words

    @torch.no_grad()
    def predict(self, text: str, n: int) -> Prediction:
        """The input's words as the model reads them, P(c|h) of all clusters that have words, P(w|h) of all words that
        stand alone, and the best n words."""
        hidden = self._hidden(text)
        log_prob, words = self._search(hidden, min(n, len(self.trained.words)))
        clusters, alone = [], []
        if self.organized is not None:
            partition, root = self.organized.partition, self.organized.root_log_prob(hidden)
            filled, own = partition.sizes.nonzero().squeeze(1), partition.own
            values, order = root[filled].sort(descending=True, stable=True)
            both = zip(filled[order].tolist(), values.double().exp().tolist(), strict=True)
            clusters = [ClusterChance(cluster=cluster, p=p) for cluster, p in both]
            values, order = root[partition.n_clusters :][: own.numel()].sort(descending=True, stable=True)
            alone = self._named(own[order], values)
        read = [Read(word=word, known=word in self.trained.id_of) for word in self.trained.tokens(text)]
        return Prediction(read=read, clusters=clusters, alone=alone, words=self._named(words, log_prob))

    @torch.no_grad()
    def open(self, text: str, cluster: int) -> Opened:
        """P(c|h) of one cluster, and its words with P(w|c, h), most probable first."""
        if self.organized is None:
            raise LookupError(f"the head {self.trained.settings.head!r} has no clusters")
        partition = self.organized.partition
        if not 0 <= cluster < partition.n_clusters or not int(partition.sizes[cluster]):
            raise LookupError(f"there is no cluster {cluster} with words; there are {partition.n_clusters}, from 0")
        hidden = self._hidden(text)
        values, order = self.organized.member_log_prob(hidden, cluster).sort(descending=True, stable=True)  # (S,)
        p = float(self.organized.cluster_log_prob(hidden)[cluster].double().exp())
        return Opened(cluster=cluster, p=p, words=self._named(partition.members(cluster)[order], values))

    def _search(self, hidden: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """The n most probable words; on a GPU a search of one row is bound by its launches, and recorded."""
        if self.organized is None or not hidden.is_cuda:
            return self.head.topk(hidden, n)
        if n not in self.searches:
            self.searches[n] = graphs.capture(partial(self.organized.topk, k=n), hidden)
        return self.searches[n](hidden)

    def _named(self, words: Tensor, log_prob: Tensor) -> list[WordChance]:
        both = zip(words.tolist(), log_prob.double().exp().tolist(), strict=True)
        return [WordChance(word=self.trained.words[word], p=p) for word, p in both]

    def _hidden(self, text: str) -> Tensor:
        """The last hidden vector, (D,), in one step if that of all words but the last is cached."""
        # Without a text it continues an unknown word, like `generate`.
        ids = tuple(self.trained.ids(self.trained.tokens(text))) or (self.trained.id_of[UNK],)
        if ids not in self.known:
            start = self.known.get(ids[:-1])
            words = torch.tensor([ids if start is None else ids[-1:]], device=self.trained.device)  # (1, L)
            hidden, state = self.trained.model.hidden(words, None if start is None else start[1])
            self.known[ids] = hidden[0, -1].clone(), state  # not a view, which would keep all of their memory
            while len(self.known) > KEPT:
                self.known.popitem(last=False)
        self.known.move_to_end(ids)
        return self.known[ids][0]


def router(run: Path, device: Device, worker: Worker, problems: dict[int | str, dict[str, Any]]) -> APIRouter:
    """The routes of a run's model."""
    predictor = Predictor(Trained.open(run, device))
    routes = APIRouter(prefix="/api")

    @routes.post("/predict", responses=problems)
    async def predict(asked: Beginning) -> Prediction:
        """What comes after a beginning: P(c|h) of every cluster, and the most probable words."""
        return await worker(lambda: predictor.predict(asked.text, asked.words))

    @routes.post("/open", responses={404: {**problems[422], "description": "no such cluster"}, **problems})
    async def open_cluster(asked: Opening) -> Opened:
        """The words of one cluster, P(w|c, h)."""
        try:
            return await worker(lambda: predictor.open(asked.text, asked.cluster))
        except LookupError as error:
            raise HTTPException(404, str(error)) from None

    return routes
