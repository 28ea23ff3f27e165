"""A vocabulary from strangers, and a run that was trained on it."""

from pathlib import Path

from coterie_lab.data.corpus import prepare
from coterie_lab.tasks.language.train import train
from tests.corpora import small, tiny_text

SCRIPT = "<script>alert(1)</script>"
LONG = "x" * 10_000
WORDS = [
    SCRIPT, "</script><img/src=x/onerror=alert(2)>", "\"quotes\"'&amp;", "{{DATA}}", "-->", "__proto__", "constructor",
    "שלום", "مرحبا", "👩‍🔬🏳️‍🌈", "ẞtraße", "javascript:alert(3)", "\\u003c", "$x^2$", LONG,
]  # fmt: skip


def hostile_run(folder: Path, name: str = "<b onclick=alert(4)>run", **given: object) -> Path:
    """A small run whose every tenth word is one of these."""
    words = tiny_text().split()
    for place in range(0, len(words), 10):
        words.insert(place, WORDS[place // 10 % len(WORDS)])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text(" ".join(words), encoding="utf-8")
    corpus = prepare([folder / "text.txt"], folder / "data")
    train(corpus, folder / name, small(epochs=1, evaluate_every=20, **given))
    return folder / name
