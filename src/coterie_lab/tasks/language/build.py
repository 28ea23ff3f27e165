"""A language model from its settings: layers, head, first weights, and which of them are trained alike.

Shapes: V words, D width.
"""

import torch
from torch import Tensor, nn

from coterie.softmax import SelfOrganizedSoftmax
from coterie_lab.heads import FullSoftmax, Material, registry
from coterie_lab.models.embedding import Embedding
from coterie_lab.models.language import LanguageModel
from coterie_lab.tasks.language.settings import Settings
from coterie_lab.training.optimizers import Group


def build(settings: Settings, counts: Tensor, material: Material | None = None) -> LanguageModel:
    """The model, on the CPU; `counts` (V,), `material`: what else its head may need. The same settings give the same
    weights."""
    torch.manual_seed(settings.seed)
    n_words = counts.numel()
    options = dict(settings.head_options)
    if material is not None and material.partition is not None:
        options.pop("partition", None)  # where the clusters came from; it may no longer be there
    head = registry.build(settings.head, settings.hidden, n_words, counts, material, **options)
    model = LanguageModel(n_words, settings.embedding, settings.hidden, head, settings.layers, settings.dropout)
    if settings.tied:
        tie(model.head, model.embedding)
    if settings.initial_range is not None:
        draw_weights(model, model.head, settings.initial_range)
    return model


def draw_weights(model: nn.Module, head: nn.Module, bound: float) -> None:
    """All weights uniform in ± bound, but for a head's own maps, which start as it made them, such as identities, and
    biases that start from the counts."""
    counted = isinstance(head, SelfOrganizedSoftmax) or (isinstance(head, FullSoftmax) and head.counted is not None)
    as_made = {*_projection(head), *([head.bias] if counted else [])}
    for parameter in model.parameters():
        if parameter not in as_made:
            nn.init.uniform_(parameter, -bound, bound)


def tie(head: nn.Module, embedding: Embedding) -> None:
    """A word is known going in by what it is known by coming out: its own vector and, if it has one, its cluster's."""
    weight = getattr(head, "weight", None)
    if not isinstance(weight, nn.Parameter) or weight.shape != embedding.weight.shape:
        raise ValueError(
            f"tied weights need a head with one vector of the embedding's width for every word, which "
            f"{type(head).__name__} has not: use --untied (in `coterie reproduce`, --setting tied=false)"
        )
    head.weight = embedding.weight
    if isinstance(head, SelfOrganizedSoftmax):
        embedding.add_clusters(head)


def groups(model: LanguageModel, settings: Settings) -> list[Group]:
    """All parameters, once each: the embedding, the LSTM (with weight decay), the projections, the rest."""
    embedding, lstm, projection = [model.embedding.weight], list(model.lstm.parameters()), _projection(model.head)
    apart = {*embedding, *lstm, *projection}
    rest = [parameter for parameter in model.parameters() if parameter not in apart]
    # A tied matrix learns from all words of every batch: one sum a row would be too coarse.
    rowwise = settings.row_accumulator and not settings.tied
    clipped = settings.clip_embedding or settings.tied
    return [
        {"params": embedding, "rowwise": rowwise, "clipped": clipped, "weight_decay": 0.0},
        {"params": lstm},
        {"params": projection, "factor": settings.projection_factor, "weight_decay": 0.0},
        {"params": rest, "weight_decay": 0.0},
    ]


def _projection(head: nn.Module) -> list[nn.Parameter]:
    projection = getattr(head, "projection", None)
    return list(projection.parameters()) if isinstance(projection, nn.Module) else []
