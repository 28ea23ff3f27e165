"""The base of language models and summarizers: a word embedding and a head that predicts words.

Shapes: V words.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from coterie.softmax import SelfOrganizedSoftmax
from coterie_lab.heads import FullSoftmax, Material, registry
from coterie_lab.models.embedding import Embedding
from coterie_lab.training.settings import ModelSettings


class WordModel(nn.Module):
    """A model with a word embedding and any head."""

    embedding: Embedding
    head: nn.Module

    @contextmanager
    def evaluating(self) -> Iterator[dict[str, float]]:
        """Evaluation mode without gradients. The dictionary gets, at the end, the two factors of the perplexity if the
        head has clusters."""
        factors: dict[str, float] = {}
        training, head = self.training, self.head
        self.eval()
        if isinstance(head, SelfOrganizedSoftmax):
            head.measures()  # resets them
        with torch.no_grad():
            yield factors
        if isinstance(head, SelfOrganizedSoftmax):
            measures = head.measures()
            factors["cluster_perplexity"] = measures.cluster_perplexity
            factors["in_cluster_perplexity"] = measures.in_cluster_perplexity
        self.train(training)


AnyModel = TypeVar("AnyModel", bound=WordModel)


def assemble(
    settings: ModelSettings,
    counts: Tensor,
    material: Material | None,
    options: dict[str, Any],
    around: Callable[[nn.Module], AnyModel],
) -> AnyModel:
    """The model `around` a head with these options, on the CPU; `counts` (V,). The same settings give the same
    weights."""
    torch.manual_seed(settings.seed)
    model = around(registry.build(settings.head, settings.hidden, counts.numel(), counts, material, **options))
    if settings.tied:
        _tie(model.head, model.embedding)
    if settings.initial_range is not None:
        _draw_weights(model, settings.initial_range)
    return model


def projection_of(head: nn.Module) -> list[nn.Parameter]:
    """The weights of a head's own linear maps."""
    projection = getattr(head, "projection", None)
    if isinstance(projection, nn.Parameter):
        return [projection]
    return list(projection.parameters()) if isinstance(projection, nn.Module) else []


def _draw_weights(model: WordModel, bound: float) -> None:
    """Draws all weights uniformly from ± bound, except a head's projections and biases that start from the counts."""
    head = model.head
    counted = isinstance(head, SelfOrganizedSoftmax) or (isinstance(head, FullSoftmax) and head.counted is not None)
    as_made = {*projection_of(head), *([head.bias] if counted else [])}
    for parameter in model.parameters():
        if parameter not in as_made:
            nn.init.uniform_(parameter, -bound, bound)


def _tie(head: nn.Module, embedding: Embedding) -> None:
    """Uses the same vectors for input and output: the word's and, if the head has clusters, its cluster's."""
    weight = getattr(head, "weight", None)
    if not isinstance(weight, nn.Parameter) or weight.shape != embedding.weight.shape:
        raise ValueError(
            f"tied weights need a head with one vector of the embedding's width for every word, which "
            f"{type(head).__name__} has not: use --untied (in `coterie reproduce`, --setting tied=false)"
        )
    head.weight = embedding.weight
    if isinstance(head, SelfOrganizedSoftmax):
        embedding.use(head)
