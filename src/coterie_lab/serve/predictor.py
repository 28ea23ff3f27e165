"""What a language model expects after a beginning: a cluster, then a word in it.

Shapes: L words read, D width, S words of a cluster.
"""

from collections import OrderedDict
from typing import cast

import torch
from torch import Tensor

from coterie.softmax import SelfOrganizedSoftmax
from coterie_lab.data.corpus import UNK
from coterie_lab.heads.registry import Head
from coterie_lab.models.lstm import State
from coterie_lab.tasks.language.trained import Trained

KEPT = 512  # beginnings whose hidden vectors are remembered


class Predictor:
    """Answers one question at a time, from one thread."""

    def __init__(self, trained: Trained) -> None:
        self.trained = trained
        head = trained.model.head
        self.head = cast(Head, head)
        self.organized = head if isinstance(head, SelfOrganizedSoftmax) else None
        self.known: OrderedDict[tuple[int, ...], tuple[Tensor, State]] = OrderedDict()

    def read(self, text: str) -> list[tuple[str, bool]]:
        """The words as the model reads them, and whether it knows them."""
        return [(word, word in self.trained.id_of) for word in self.trained.tokens(text)]

    @torch.no_grad()
    def clusters(self, text: str) -> list[tuple[int, float]]:
        """All clusters that have words with P(c|h), most probable first; none if the head has none."""
        if self.organized is None:
            return []
        probability = self.organized.cluster_log_prob(self._hidden(text)).double().exp()
        filled = self.organized.partition.sizes.nonzero().squeeze(1)
        order = filled[probability[filled].argsort(descending=True, stable=True)]
        return list(zip(order.tolist(), probability[order].tolist(), strict=True))

    @torch.no_grad()
    def words(self, text: str, n: int) -> list[tuple[str, float]]:
        """The n most probable words with P(w|h)."""
        values, words = self.head.topk(self._hidden(text), min(n, len(self.trained.words)))
        return self._named(words, values)

    @torch.no_grad()
    def open(self, text: str, cluster: int) -> tuple[float, list[tuple[str, float]]]:
        """P(c|h), and the words of the cluster with P(w|c, h), most probable first."""
        if self.organized is None:
            raise LookupError(f"the head {self.trained.settings.head!r} has no clusters")
        partition = self.organized.partition
        if not 0 <= cluster < partition.n_clusters or not int(partition.sizes[cluster]):
            raise LookupError(f"there is no cluster {cluster} with words; there are {partition.n_clusters}, from 0")
        hidden = self._hidden(text)
        values, order = self.organized.member_log_prob(hidden, cluster).sort(descending=True, stable=True)  # (S,)
        log_cluster = self.organized.cluster_log_prob(hidden)[cluster]
        return float(log_cluster.double().exp()), self._named(partition.members(cluster)[order], values)

    def _named(self, words: Tensor, log_prob: Tensor) -> list[tuple[str, float]]:
        names = [self.trained.words[word] for word in words.tolist()]
        return list(zip(names, log_prob.double().exp().tolist(), strict=True))

    def _hidden(self, text: str) -> Tensor:
        """The last hidden vector, (D,). Going on from a beginning that is remembered is one step."""
        # Without a beginning the text goes on after an unknown word, as when it is generated.
        ids = tuple(self.trained.ids(text)) or (self.trained.id_of[UNK],)
        if ids not in self.known:
            start = self.known.get(ids[:-1])
            words = torch.tensor([ids if start is None else ids[-1:]], device=self.trained.device)  # (1, L)
            hidden, state = self.trained.model.hidden(words, None if start is None else start[1])
            self.known[ids] = hidden[0, -1].clone(), state  # not a view, which would keep all of them
            while len(self.known) > KEPT:
                self.known.popitem(last=False)
        self.known.move_to_end(ids)
        return self.known[ids][0]
