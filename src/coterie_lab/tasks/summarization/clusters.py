"""Clusters for a summarizer: a language model with the self-organized head learns them from the pairs' text.

In the paper that text is the titles alone. Words that occur only in sentences, which a title may copy, then keep their
random clusters; reading the sentences, too, gives these words clusters that fit.
"""

from pathlib import Path
from typing import Unpack

from coterie.clustering.partition import Partition
from coterie_lab.data.pairs import Pairs, Reading
from coterie_lab.tasks.language.settings import Settings
from coterie_lab.tasks.language.train import KIND, train
from coterie_lab.tasks.language.trained import Trained
from coterie_lab.training.run import Run, write_whole
from coterie_lab.training.start import How


def cluster(pairs: Pairs, out: Path, settings: Settings, reading: Reading = "both", **how: Unpack[How]) -> Path | None:
    """Trains the language model into the folder `out`; returns the file of its clusters, None if it was stopped."""
    if not train(pairs.language(reading), out, settings, **how).finished:
        return None
    file = Run(out).clusters
    if not file.exists():
        write_whole(file, Trained.open(out, "cpu").organized.partition.to_text(pairs.words))
    return file


def read_by(run: Path, pairs: Pairs) -> Reading:
    """Which part of the pairs the language model of a run reads."""
    _, stored = Run.open(run, KIND)
    return "titles" if stored["corpus"]["train_words"] == len(pairs.part("train").title.ids) else "both"


def load(path: Path, pairs: Pairs) -> Partition:
    """Loads clusters from a file or the language model's folder; raises if they are of another vocabulary."""
    file = Run(path).clusters if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist: give a file of clusters, or the folder of `summarize cluster`")
    try:
        return Partition.load(file, pairs.words)
    except ValueError as error:
        raise ValueError(f"{error}; learn clusters from these pairs with `coterie summarize cluster`") from None
