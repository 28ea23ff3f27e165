"""Losses that a change which computes nothing new must leave as they are.

`python -m tests.golden` compares every number of this tree, bit for bit, with `golden.json`; `--write` replaces that
file. Bits hold on one machine only, since other processors round otherwise: the test allows 1e-5.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from coterie_lab.data.grammar import default_grammar
from coterie_lab.demo.run import heads, train
from coterie_lab.demo.settings import Setting
from coterie_lab.tasks.language.train import train as train_language_model
from coterie_lab.tasks.summarization.train import train as train_summarizer
from tests import corpora, pairs

FILE = Path(__file__).with_name("golden.json")

LANGUAGE_MODELS: dict[str, dict[str, Any]] = {
    "self-organized": {},
    "no word alone": {"settle": 0.7, "head_options": {"own_words": 0, "reorganize_every": 15}},
    "tied": {"tied": True},
    "adagrad": {"optimizer": "adagrad", "learning_rate": 0.1, "clip": 0.25},
    "table": {"head_options": {"own_words": 8, "statistic": "table", "score": "paper"}},
    "relu": {"head_options": {"own_words": 8, "activation": "relu", "label_smoothing": 0.1}},
    "as in the paper": {"preset": "paper", "head_options": {"reorganize_every": 15}},
    **{
        head: {"head": head, "head_options": {}}
        for head in ("full", "adaptive", "importance", "nce", "cnn", "hsm-frequency", "hsm-huffman", "differentiated")
    },
}
SUMMARIZERS: dict[str, dict[str, Any]] = {
    "self-organized": {},
    "full": {"head": "full"},
    "input feeding": {"input_feeding": True, "dropout": 0.3},
    "as in the paper": {"preset": "paper", "head_options": {"reorganize_every": 7}},
}


def losses(run: Path) -> list[float]:
    """Every loss that a run wrote to its log."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def measured() -> dict[str, list[float]]:
    """All losses and perplexities of small runs of every kind."""
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = corpora.tiny_corpus(folder)
        for label, options in LANGUAGE_MODELS.items():
            given = {"dropout": 0.1, **options}
            preset = given.pop("preset", "best")
            settings = corpora.from_preset(preset, **{**corpora.SMALL, **given})
            train_language_model(corpus, folder / f"lm {label}", settings)
            found[f"language model, {label}"] = losses(folder / f"lm {label}")
        (folder / "titles").mkdir()
        prepared = pairs.tiny_pairs(folder / "titles")
        for label, options in SUMMARIZERS.items():
            train_summarizer(prepared, folder / "titles" / label, pairs.small(**options))
            found[f"summarizer, {label}"] = losses(folder / "titles" / label)
        grammar = default_grammar()
        setting = Setting(words=20_000, dev_words=4_000, width=24, epochs=2)
        text, dev = (grammar.write(n, seed) for n, seed in ((setting.words, 1), (setting.dev_words, 2)))
        counts = torch.bincount(text, minlength=len(grammar.words))
        for label, build in heads(grammar, setting, counts).items():
            torch.manual_seed(0)
            found[f"demo, {label}"] = train(build(), grammar, setting, text, dev, lambda *_: None).perplexity
    return found


if __name__ == "__main__":
    now = measured()
    if "--write" in sys.argv:
        FILE.write_text(json.dumps(now) + "\n")
        sys.exit()
    before = json.loads(FILE.read_text())
    differ = [label for label in before | now if before.get(label) != now.get(label)]
    print("\n".join(f"differs: {label}" for label in differ) or "bit for bit the same")
    sys.exit(bool(differ))
