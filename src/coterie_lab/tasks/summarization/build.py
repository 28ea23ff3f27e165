"""A summarizer from its settings: layers, head, clusters, first weights.

Shapes: V words.
"""

from typing import Any

import torch
from torch import Tensor

from coterie.clustering.partition import Partition
from coterie_lab.heads import Material, registry
from coterie_lab.models.summarizer import Summarizer
from coterie_lab.tasks.language.build import draw_weights, tie
from coterie_lab.tasks.summarization.settings import Settings

CLUSTERED = ("self-organized", "self-organized-paper")


def build(
    settings: Settings, counts: Tensor, eos: int, partition: Partition | None = None, material: Material | None = None
) -> Summarizer:
    """The model, on the CPU; `counts` (V,). The same settings give the same weights.

    `partition`: the clusters of the head, which stay as they are unless its options say `reorganize_every`.
    `material`: what else the head may need.
    """
    torch.manual_seed(settings.seed)
    n_words = counts.numel()
    options: dict[str, Any] = dict(settings.head_options)
    if partition is not None:
        check_partition(settings.head, partition, n_words)
        options = {"reorganize_every": None, **options, "partition": partition}
    head = registry.build(settings.head, settings.hidden, n_words, counts, material, **options)
    model = Summarizer(
        n_words, eos, settings.embedding, settings.hidden, head, settings.bidirectional, settings.look_at_words,
        settings.dropout, settings.input_feeding,
    )  # fmt: skip
    if settings.tied:
        tie(head, model.embedding)
    if settings.initial_range is not None:
        draw_weights(model, head, settings.initial_range)
    return model


def check_partition(head: str, partition: Partition, n_words: int) -> None:
    """Refuses clusters that the head does not take, or of another vocabulary."""
    if partition.n_words != n_words:
        raise ValueError(
            f"the clusters are of {partition.n_words:,} words and the pairs have {n_words:,}: learn them from these "
            "pairs (`coterie summarize cluster`)"
        )
    if head not in CLUSTERED:
        raise ValueError(
            f"the head {head!r} takes no clusters: leave out --partition, or use --head {' or '.join(CLUSTERED)}"
        )
