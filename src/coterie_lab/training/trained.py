"""A trained model, loaded from its run's folder for inference.

Shapes: V words.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from coterie.clustering.partition import Partition
from coterie.softmax import SelfOrganizedSoftmax
from coterie_lab.data.folder import UNK, VOCABULARY
from coterie_lab.heads import Material
from coterie_lab.models.word_model import WordModel
from coterie_lab.training import checkpoint
from coterie_lab.training.device import choose_device
from coterie_lab.training.run import Run, read_json
from coterie_lab.training.settings import Device, ModelSettings

AnyModel = TypeVar("AnyModel", bound=WordModel)
AnySettings = TypeVar("AnySettings", bound=ModelSettings)


@dataclass(frozen=True)
class Trained(Generic[AnyModel, AnySettings]):
    """A model, its vocabulary and its settings; a subclass defines the kind of model and how to split text for it."""

    path: Path
    model: AnyModel
    settings: AnySettings
    words: list[str]
    counts: Tensor  # (V,) in the text it was trained on, on the CPU
    prepared: dict[str, Any]  # the settings its text was prepared with
    corpus: dict[str, Any]  # where that text was
    device: torch.device

    kind: ClassVar[str]
    command: ClassVar[str]  # the command that trains this kind
    settings_class: ClassVar[type[Any]]

    @classmethod
    def open(cls, path: Path, device: Device = "auto") -> Self:
        """Loads the model that a run kept."""
        run, config = Run.open(path, cls.kind)
        if not (run.best.exists() or run.result.exists()):
            raise ValueError(
                f"{path} holds no model yet: it was stopped before its first evaluation; resume it with `coterie "
                f"{cls.command} train {config['corpus']['path']} --out {path} --resume`"
            )
        for file in (run.best, path / VOCABULARY):
            if not file.exists():
                raise ValueError(
                    f"{path} is damaged: its {file.name} is gone. Put it back, or train again with --force"
                )
        state, vocabulary = checkpoint.load(run.best)["model"], read_json(path / VOCABULARY)
        where = choose_device(device)
        try:
            settings = cls.settings_class.from_dict(config["settings"])
            words, counts = vocabulary["words"], torch.tensor(vocabulary["counts"], dtype=torch.int64)
            # The head's state dict holds what it was built from, so that this reads no text and computes no clusters.
            material = Material(words, np.empty(0, np.int64), _saved_clusters(state))
            model = cls.build(run, settings, words, counts, material)
            model.load_state_dict(state)
            prepared = vocabulary["source"]["settings"]
            return cls(path, model.to(where).eval(), settings, words, counts, prepared, config["corpus"], where)
        except torch.OutOfMemoryError:
            raise
        except (LookupError, TypeError, RuntimeError) as error:
            why, *_ = str(error).splitlines() or [type(error).__name__]
            raise ValueError(
                f"{path} is damaged: its settings, vocabulary and model do not fit together ({why})"
            ) from error

    @classmethod
    def stored_settings(cls, path: Path) -> AnySettings:
        """Reads the settings of a run, which may have no model yet."""
        found: AnySettings = cls.settings_class.from_dict(Run.open(path, cls.kind)[1]["settings"])
        return found

    @staticmethod
    def build(run: Run, settings: Any, words: list[str], counts: Tensor, material: Material) -> Any:
        """Builds the model of a run, without its weights."""
        raise NotImplementedError

    @property
    def organized(self) -> SelfOrganizedSoftmax:
        """The head if it has clusters, else None."""
        if not isinstance(self.model.head, SelfOrganizedSoftmax):
            raise ValueError(f"{self.path} was trained with the head {self.settings.head!r}, which has no clusters")
        return self.model.head

    def tokens(self, text: str) -> list[str]:
        """Splits a text into words as the model reads them."""
        raise NotImplementedError

    def ids(self, tokens: list[str]) -> list[int]:
        """The ids of words; unknown ones are <unk>."""
        return [self.id_of.get(token, self.id_of[UNK]) for token in tokens]

    @cached_property
    def id_of(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}


def _saved_clusters(state: dict[str, Tensor]) -> Partition | None:
    """The clusters in a saved model, if its head has any."""
    cluster_of, clusters = state.get("head.partition.cluster_of"), state.get("head.cluster_weight")
    if cluster_of is None or clusters is None:
        return None
    n_clusters = clusters.shape[0]
    return Partition(cluster_of, n_clusters, n_own=int((cluster_of == n_clusters).sum()))
