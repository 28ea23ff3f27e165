"""A language model from its settings, and which of its parameters are trained alike.

Shapes: V words.
"""

from torch import Tensor, nn

from coterie_lab.heads import Material
from coterie_lab.models.language import LanguageModel
from coterie_lab.models.word_model import assemble, projection_of
from coterie_lab.tasks.language.settings import Settings
from coterie_lab.training.optimizers import Group


def build(settings: Settings, counts: Tensor, material: Material | None = None) -> LanguageModel:
    """The model, on the CPU; `counts` (V,), `material`: what else its head may need."""
    options = dict(settings.head_options)
    if material is not None and material.partition is not None:
        options.pop("partition", None)  # where the clusters came from; it may no longer be there

    def around(head: nn.Module) -> LanguageModel:
        return LanguageModel(
            counts.numel(), settings.embedding, settings.hidden, head, settings.layers, settings.dropout
        )

    return assemble(settings, counts, material, options, around)


def groups(model: LanguageModel, settings: Settings) -> list[Group]:
    """All parameters, once each: the embedding, the LSTM (with weight decay), the projections, the rest."""
    embedding, lstm, projection = [model.embedding.weight], list(model.lstm.parameters()), projection_of(model.head)
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
