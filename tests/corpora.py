"""A tiny prepared corpus from the generated language, and settings small enough to train on it in a second."""

from pathlib import Path
from typing import Any

from coterie_lab.data.corpus import Corpus, prepare
from coterie_lab.data.grammar import default_grammar
from coterie_lab.tasks.language.settings import Settings, from_preset

SMALL: dict[str, Any] = {
    "hidden": 16, "embedding": 16, "sequences": 8, "length": 7, "epochs": 2, "log_every": 1, "device": "cpu",
    "head_options": {"own_words": 8},
}  # fmt: skip


def small(**given: Any) -> Settings:
    """The default preset, made small."""
    return from_preset("best", **{**SMALL, **given})


def tiny_text(words: int = 4000, seed: int = 1) -> str:
    """A text of the generated language with 200 words."""
    grammar = default_grammar(words_per_class=5)
    return " ".join(grammar.words[word] for word in grammar.write(words, seed).tolist())


def tiny_corpus(folder: Path, words: int = 4000) -> Corpus:
    """The text prepared in a folder, its last tenth for development."""
    (folder / "text.txt").write_text(tiny_text(words))
    return prepare([folder / "text.txt"], folder / "data")
