"""A summarizer from its settings.

Shapes: V words.
"""

from torch import Tensor, nn

from coterie.clustering.partition import Partition
from coterie_lab.heads import Material
from coterie_lab.models.summarizer import Summarizer
from coterie_lab.models.word_model import assemble
from coterie_lab.tasks.summarization.settings import Settings

CLUSTERED = ("self-organized", "self-organized-paper")


def build(
    settings: Settings, counts: Tensor, eos: int, partition: Partition | None = None, material: Material | None = None
) -> Summarizer:
    """The model, on the CPU; `counts` (V,).

    `partition`: the clusters of the head, which stay fixed unless its options say `reorganize_every`.
    `material`: what else the head may need.
    """
    n_words, options = counts.numel(), dict(settings.head_options)
    if partition is not None:
        _check_partition(settings.head, partition, n_words)
        options = {"reorganize_every": None, **options, "partition": partition}

    def around(head: nn.Module) -> Summarizer:
        return Summarizer(
            n_words, eos, settings.embedding, settings.hidden, head, settings.bidirectional, settings.look_at_words,
            settings.dropout, settings.input_feeding,
        )  # fmt: skip

    return assemble(settings, counts, material, options, around)


def _check_partition(head: str, partition: Partition, n_words: int) -> None:
    """Refuses clusters of another vocabulary, or a head that takes none."""
    if partition.n_words != n_words:
        raise ValueError(
            f"the clusters are of {partition.n_words:,} words and the pairs have {n_words:,}: learn them from these "
            "pairs (`coterie summarize cluster`)"
        )
    if head not in CLUSTERED:
        raise ValueError(
            f"the head {head!r} takes no clusters: leave out --partition, or use --head {' or '.join(CLUSTERED)}"
        )
