"""A trained language model, read from its run's folder for use.

Shapes: V words.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.clustering.partition import Partition
from coterie.softmax import SelfOrganizedSoftmax
from coterie_lab.data.corpus import UNK, VOCABULARY, tokens_of
from coterie_lab.heads import Material
from coterie_lab.models.language import LanguageModel
from coterie_lab.tasks.language.build import build
from coterie_lab.tasks.language.settings import Settings
from coterie_lab.tasks.language.train import KIND
from coterie_lab.training import checkpoint
from coterie_lab.training.device import choose_device
from coterie_lab.training.run import Run, read_json
from coterie_lab.training.settings import Device


@dataclass(frozen=True)
class Trained:
    """A model, its words, and how it was made."""

    path: Path
    model: LanguageModel
    settings: Settings
    words: list[str]
    counts: Tensor  # (V,) in the training text, on the CPU
    lower: bool  # how the text was split into words
    eos: bool
    corpus: dict[str, Any]  # where the text was
    device: torch.device

    @classmethod
    def open(cls, path: Path, device: Device = "auto") -> "Trained":
        """The model that a run kept."""
        config, content, vocabulary = saved(path, KIND, "lm")
        where = choose_device(device)
        with whole(path):
            settings = Settings.from_dict(config["settings"])
            counts = torch.tensor(vocabulary["counts"], dtype=torch.int64)
            # What a head was made from is in its state: no text is read again, no clusters are looked for.
            material = Material(vocabulary["words"], np.empty(0, np.int64), saved_clusters(content["model"]))
            model = build(settings, counts, material)
            model.load_state_dict(content["model"])
            how = vocabulary["source"]["settings"]
            return cls(
                path, model.to(where).eval(), settings, vocabulary["words"], counts, how["lower"], how["eos"],
                config["corpus"], where,
            )  # fmt: skip

    @property
    def organized(self) -> SelfOrganizedSoftmax:
        """The head, if it has clusters."""
        if not isinstance(self.model.head, SelfOrganizedSoftmax):
            raise ValueError(f"{self.path} was trained with the head {self.settings.head!r}, which has no clusters")
        return self.model.head

    def tokens(self, text: str) -> list[str]:
        """The words of a text, split as the training text was; with <eos>, where that has it, at ends of lines."""
        return tokens_of(text, self.lower, self.eos)

    def ids(self, text: str) -> list[int]:
        """Their numbers; unknown ones are <unk>."""
        return [self.id_of.get(token, self.id_of[UNK]) for token in self.tokens(text)]

    @cached_property
    def id_of(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}


def saved(path: Path, kind: str, command: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """What a run's folder holds: its configuration, the model it kept, its vocabulary. `command` trains that kind."""
    run, config = Run.open(path, kind)
    if not (run.best.exists() or run.result.exists()):
        raise ValueError(
            f"{path} holds no model yet: it was stopped before its first evaluation; go on with `coterie {command} "
            f"train {config['corpus']['path']} --out {path} --resume`"
        )
    for file in (run.best, path / VOCABULARY):
        if not file.exists():
            raise ValueError(f"{path} is damaged: its {file.name} is gone. Put it back, or train again with --force")
    return config, checkpoint.load(run.best), read_json(path / VOCABULARY)


@contextmanager
def whole(path: Path) -> Iterator[None]:
    """Says of a run's folder that it is damaged, where its files do not fit together."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (LookupError, TypeError, RuntimeError) as error:
        why, *_ = str(error).splitlines() or [type(error).__name__]
        raise ValueError(
            f"{path} is damaged: its settings, vocabulary and model do not fit together ({why})"
        ) from error


def saved_clusters(state: dict[str, Tensor]) -> Partition | None:
    """Those of a saved model whose head has some."""
    cluster_of, clusters = state.get("head.partition.cluster_of"), state.get("head.cluster_weight")
    return None if cluster_of is None or clusters is None else Partition(cluster_of, clusters.shape[0])
