"""What heads are compared on: text8 as the paper has it, WikiText-2, a generated language, small enough for any
machine, and text8 with a Transformer."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie_lab.data.corpus import Corpus, prepare
from coterie_lab.data.grammar import default_grammar
from coterie_lab.experiments.language.variants import Variant
from coterie_lab.tasks.language.settings import Settings


@dataclass(frozen=True)
class Experiment:
    """How every variant is trained in it: its settings go before a variant's, a variant's own options of a head before
    those here."""

    name: str
    published: bool  # whether the paper's figures are of this text
    parts: bool = False  # whether its text is a folder of three files: train, valid and test
    settings: dict[str, Any] = field(default_factory=dict)
    head_options: dict[str, dict[str, Any]] = field(default_factory=dict)  # by head
    heads: str = "full,self-organized"  # what is compared if nothing else is asked for
    equal_updates: bool = False  # whether all are evaluated where the self-organized head reorganises

    def settings_of(self, variant: Variant, **given: Any) -> Settings:
        """The settings of a variant's runs, with those in `given` replaced."""
        usual, own = self.head_options.get(variant.settings().head, {}), variant.changed(given)["head_options"]
        return variant.settings(**{**self.settings, **given, "head_options": {**usual, **own}})


# As printed the head reorganises every 1,000 updates. These runs are shorter than the paper's.
_PRINTED = "self-organized-paper"
_FEW = {"samples": 500}  # a sixth of the words, as 8,192 are of text8's
EXPERIMENTS = {
    "text8": Experiment("text8", published=True),
    # Twenty times less text than text8: without dropout and tied vectors any model learns it by heart.
    "wikitext2": Experiment(
        "wikitext2",
        published=False,
        parts=True,
        settings={"tied": True, "dropout": 0.5, "epochs": 12, "sequences": 64, "length": 35},
        head_options={_PRINTED: {"reorganize_every": 250}},
    ),
    "generated": Experiment(
        "generated",
        published=False,
        settings={
            "embedding": 128, "hidden": 128, "dropout": 0.0, "sequences": 64, "epochs": 3, "initial_range": None,
            "optimizer": "adam", "learning_rate": 1e-3, "schedule": "constant", "clip": None, "projection_factor": 1.0,
        },
        head_options={
            _PRINTED: {"reorganize_every": 100}, "importance": _FEW, "nce": _FEW,
            "cnn": {**_FEW, "features": 8, "widths": [2, 3, 4]},
        },
    ),
    # The head as it is built by default, in the recipe of a Transformer, against full softmaxes tied like it.
    "transformer": Experiment(
        "transformer",
        published=False,
        settings={"model": "transformer", "compile": True, "evaluate_every": 250, "evaluate_moves": True},
        heads="self-organized,full,full-compiled,full-compiled-random-biases,adaptive",
        equal_updates=True,
    ),
}  # fmt: skip


def parts_of(folder: Path) -> tuple[Path, Path, Path]:
    """The files of a folder that holds one each for train, valid and test."""
    there = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    found = {part: [path for path in there if part in path.name.split(".")] for part in ("train", "valid", "test")}
    if any(len(paths) != 1 for paths in found.values()):
        raise ValueError(
            f"{folder} should be a folder with one file each for train, valid and test, such as train.txt.xz or "
            f"wiki.train.tokens; found {', '.join(path.name for path in there) or 'no files'}"
        )
    (train,), (valid,), (test,) = found.values()
    return train, valid, test


def generated(folder: Path, words: int = 550_000, dev_words: int = 50_000, words_per_class: int = 75) -> Corpus:
    """The generated language as a corpus in a new folder, or the one that is there."""
    ready = folder / "data"
    if ready.exists():
        return Corpus.open(ready)
    grammar = default_grammar(words_per_class)
    folder.mkdir(parents=True, exist_ok=True)
    parts = {}
    for seed, (part, length) in enumerate((("train", words), ("dev", dev_words)), start=1):
        parts[part] = folder / f"{part}.txt"
        parts[part].write_text(" ".join(grammar.words[word] for word in grammar.write(length, seed).tolist()))
    return prepare([parts["train"]], ready, dev=parts["dev"])
