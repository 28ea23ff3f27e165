"""The demonstration: one language model, with a full softmax and with the layer, on a known language.

Shapes: V words.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from coterie.clustering.neighbours import mass
from coterie.metrics import Measures
from coterie.softmax import SelfOrganizedSoftmax
from coterie_lab.data.grammar import Grammar
from coterie_lab.demo.settings import Setting
from coterie_lab.explorer.collect import Content, Curves
from coterie_lab.explorer.explorer import Organized
from coterie_lab.heads import FullSoftmax
from coterie_lab.models.language import batches, mean_loss
from coterie_lab.models.recurrent import RecurrentModel
from coterie_lab.training.environment import describe
from coterie_lab.training.moves import History, Move


@dataclass
class Result:
    """The results of one head."""

    organized: SelfOrganizedSoftmax | None  # the head, if it has clusters
    perplexity: list[float] = field(default_factory=list)  # on the development text, after each epoch
    agreement: list[float] = field(default_factory=list)  # with the grammar's classes: at the start, after each epoch
    alone: int = 0  # words that stand alone, and count as a class of their own
    measures: Measures | None = None
    seconds: float = 0.0
    curves: Curves = field(default_factory=Curves)
    moves: list[Move] = field(default_factory=list)  # of the words, from the start

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without the head and the moves, which are too many to read."""
        told = asdict(replace(self, organized=None, moves=[]))
        del told["organized"]
        return told


Tick = Callable[[int, float], None]  # updates done, training perplexity


def train(head: nn.Module, grammar: Grammar, setting: Setting, text: Tensor, dev: Tensor, tick: Tick) -> Result:
    """Trains a language model with a head; times only the training."""
    torch.manual_seed(setting.seed)
    model = RecurrentModel(len(grammar.words), setting.width, setting.width, head)
    optimizer = torch.optim.Adam(model.parameters(), lr=setting.learning_rate)
    steps = batches(text, setting.sequences, setting.length)
    organized = head if isinstance(head, SelfOrganizedSoftmax) else None
    result = Result(organized)
    curves = result.curves
    if organized is not None:
        history = History(organized.partition.cluster_of)
        result.agreement.append(agreement(organized, grammar))
        result.alone = organized.partition.own.numel()
        result.moves = history.moves
    for epoch in range(setting.epochs):
        state = None
        start = time.perf_counter()
        for n, (words, target) in enumerate(steps, start=epoch * len(steps) + 1):
            loss, state = model(words, target, state)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if organized is not None and (moved := organized.step()) is not None:
                curves.reorganized.append(n)
                curves.share_of_words.append(moved.share_of_words)
                curves.share_of_mass.append(moved.share_of_mass)
                history.add(n, organized.partition.cluster_of)
            if n % 10 == 0:
                tick(n, math.exp(min(float(loss.detach()), 20.0)))
        result.seconds += time.perf_counter() - start
        result.perplexity.append(math.exp(mean_loss(model, dev, setting.sequences, setting.length)))
        curves.evaluated.append((epoch + 1) * len(steps))
        curves.perplexity.append(result.perplexity[-1])
        if organized is not None:
            result.agreement.append(agreement(organized, grammar))
            organized.eval()
            result.measures = organized.measures()
            organized.train()
            curves.cluster_perplexity.append(result.measures.cluster_perplexity)
            curves.in_cluster_perplexity.append(result.measures.in_cluster_perplexity)
    return result


def heads(grammar: Grammar, setting: Setting, counts: Tensor) -> dict[str, Callable[[], nn.Module]]:
    """The heads to compare."""
    n_words = len(grammar.words)
    return {
        "full": lambda: FullSoftmax(setting.width, n_words, counts),
        "self-organized": lambda: SelfOrganizedSoftmax(
            setting.width, n_words, counts, reorganize_every=setting.reorganize_every
        ),
    }


def agreement(head: SelfOrganizedSoftmax, grammar: Grammar) -> float:
    """Adjusted mutual information of the clusters with the grammar's classes: 0 by chance, 1 when they are the same.

    Words that stand alone count as a class of their own."""
    from sklearn.metrics import adjusted_mutual_info_score

    clusters = head.partition.cluster_of.cpu()
    classes = torch.where(clusters == head.n_clusters, len(grammar.class_names), grammar.class_of)
    return float(adjusted_mutual_info_score(classes.numpy(), clusters.numpy()))


def some_clusters(head: SelfOrganizedSoftmax, grammar: Grammar, n: int, length: int) -> list[tuple[str, list[str]]]:
    """A few clusters, evenly from frequent to rare: the class of most of its words, and its frequent words."""
    of_cluster = mass(head.partition, head.counts)
    filled = [cluster for cluster in of_cluster.argsort(descending=True).tolist() if of_cluster[cluster] > 0]
    rows = []
    for cluster in filled[:: max(len(filled) // n, 1)][:n]:
        words = head.partition.members(cluster)
        classes = grammar.class_of[words]
        most = int(classes.mode().values)
        frequent = words[head.counts[words].argsort(descending=True)][:length]
        label = f"{grammar.class_names[most]} ({int((classes == most).sum())} of {words.numel()})"
        rows.append((label, [grammar.words[word] for word in frequent.tolist()]))
    return rows


def contents(results: dict[str, Result], setting: Setting, words: list[str], counts: Tensor) -> list[Content]:
    """The content of the results' page; `counts` (V,)."""
    return [
        Content(
            name=name,
            head=name,
            curves=result.curves,
            facts={
                **(asdict(result.measures) if result.measures else {}),
                "perplexity": min(result.perplexity),
                **({"alone": result.alone} if result.organized else {}),
                "words": len(words),
                "updates": result.curves.evaluated[-1],
                "seconds": result.seconds,
                "words_per_second": setting.epochs * setting.words / result.seconds,
            },
            settings=asdict(setting),
            environment=describe(),
            organized=Organized(result.organized, words, counts, result.moves) if result.organized else None,
        )
        for name, result in results.items()
    ]
