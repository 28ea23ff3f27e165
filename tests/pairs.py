"""Pairs for tests: sentences of invented news, whose titles follow from them."""

import random
from pathlib import Path
from typing import Any

from coterie_lab.data.pairs import Pairs
from coterie_lab.data.prepare_pairs import prepare
from coterie_lab.tasks.summarization.settings import Settings, from_preset

WHO = "bank company minister court union bakery army team school church museum airline".split()  # noqa: SIM905
WHERE = "paris lima cairo oslo delhi rome quito accra hanoi minsk".split()  # noqa: SIM905
DID = {"sold": "sells", "bought": "buys", "closed": "closes", "opened": "opens", "praised": "praises"}
WHAT = "ships bridges factories farms hotels mines".split()  # noqa: SIM905
WHEN = "monday tuesday wednesday thursday friday".split()  # noqa: SIM905

SMALL: dict[str, Any] = {
    "hidden": 24, "embedding": 24, "batch": 16, "epochs": 2, "log_every": 1, "device": "cpu", "dropout": 0.0,
    "head_options": {},
}  # fmt: skip


def small(preset: str = "best", **given: Any) -> Settings:
    """A preset, made small."""
    return from_preset(preset, **{**SMALL, **given})


def news(n: int, seed: int = 0) -> list[tuple[str, str]]:
    """Sentences and titles, no two sentences alike."""
    luck = random.Random(seed)
    found: dict[str, str] = {}
    while len(found) < n:
        who, where, did, what, when = (luck.choice(list(words)) for words in (WHO, WHERE, DID, WHAT, WHEN))
        number = luck.randint(2, 99)
        extra = luck.choice(["", ", officials said", ", after years of talks with the city 's council"])
        sentence = f"The {who} of {where} {did} {number} {what} on {when}{extra} ."
        found[sentence] = f"{where} {who} {DID[did]} {what}"
    return list(found.items())


def write_tsv(path: Path, pairs: list[tuple[str, str]]) -> Path:
    path.write_text("".join(f"{article}\t{title}\n" for article, title in pairs), encoding="utf-8")
    return path


def write_gigaword(folder: Path, pairs: list[tuple[str, str]]) -> Path:
    """The same in Gigaword's layout: a tenth each for validation and test."""
    n = len(pairs) // 10
    parts = {"train.{}.txt": pairs[2 * n :], "valid.{}.filter.txt": pairs[:n]}
    folder.mkdir()
    for name, part in parts.items():
        for at, side in enumerate(("article", "title")):
            (folder / name.format(side)).write_text("".join(f"{pair[at].lower()}\n" for pair in part))
    (folder / "Giga").mkdir()
    for name, at in (("input.txt", 0), ("task1_ref0.txt", 1)):
        (folder / "Giga" / name).write_text("".join(f"{pair[at].lower()}\n" for pair in pairs[n : 2 * n]))
    return folder


def tiny_pairs(folder: Path, n: int = 300, **options: Any) -> Pairs:
    """Pairs prepared in a folder."""
    return prepare([write_tsv(folder / "news.tsv", news(n))], folder / "data", **options)
