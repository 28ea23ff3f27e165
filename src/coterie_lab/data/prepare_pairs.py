"""Prepares pairs of text: normalises, filters, splits and numbers them.

Raw text is tokenised once, into temporary files, from which words are counted and then numbered. Memory holds the
distinct words and eight bytes per sentence, never the text.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie_lab.data import normalise
from coterie_lab.data.arrays import Writer, dtype_of
from coterie_lab.data.corpus import vocabulary
from coterie_lab.data.filters import Filter
from coterie_lab.data.folder import EOS, UNK, VOCABULARY, refuse, whole, write_vocabulary
from coterie_lab.data.pair_sources import Layout, find
from coterie_lab.data.pairs import ENDS, FORMAT, PARTS, SIDES, Pairs, array_names, text_name
from coterie_lab.data.settings import PairSettings

HELD_OUT = 2000  # pairs for each of valid and test, or a 25th of few pairs


def prepare(
    sources: Sequence[str | Path],
    out: str | Path,
    *,
    force: bool = False,
    progress: Callable[[int], None] | None = None,
    **given: Any,
) -> Pairs:
    """Writes the folder `out` from pairs, and opens it; `given`: fields of `PairSettings`.

    The vocabulary of both sides has the `max_vocab` most frequent words of the training titles, those that occur at
    least `min_count` times there; `source_words`: filled up with the most frequent words of the sentences. From pairs
    that are not split, `valid` and `test` of them are drawn by the seed. `progress` hears of the pairs read.
    """
    out = Path(out)
    settings = PairSettings(**given)
    names = [name for part in PARTS for side in SIDES for name in (*array_names(part, side), text_name(part, side))]
    refuse(out, force, [VOCABULARY, *names])
    layout = find([sources] if isinstance(sources, str | Path) else sources)
    with whole(out, force) as folder:
        filters = Filter(settings)
        read = _normalise(folder, layout, filters, progress)
        try:
            splits = _split(read, layout, settings)
        except ValueError as error:
            left_out = ", ".join(f"{n:,} {why}" for why, n in filters.counted.most_common())
            raise ValueError(f"{error} (left out: {left_out or 'none'})") from None
        titles, articles = _count(folder, splits["train"])
        counts = titles + Counter({EOS: len(splits["train"][1])})
        words, kept = vocabulary(counts, settings.min_count, settings.max_vocab, always=[EOS])
        if settings.source_words:
            known = set(words)
            more = [word for word in articles if word not in known and word != UNK]
            words += sorted(more, key=lambda word: (-articles[word], word))[: settings.max_vocab - len(words)]
            kept += [0] * (len(words) - len(kept))
        parts = {part: _number(folder, part, split, words) for part, split in splits.items()}
        for name in {name for name, _ in splits.values()}:
            (folder / name).unlink()
        # `lower` and `eos` define how a language model of the pairs splits its text.
        told = {name: value for name, value in asdict(settings).items() if name not in ("valid", "test")}
        told |= {"raw": layout.raw, "lower": True, "eos": True}
        write_vocabulary(
            folder, FORMAT, words, kept, parts, told, {part: chain(*found) for part, found in layout.files.items()},
            read={part: n for part, (_, n) in read.items()}, left_out=dict(filters.counted.most_common()),
        )  # fmt: skip
    return Pairs.open(out)


def _normalise(
    folder: Path, layout: Layout, filters: Filter, progress: Callable[[int], None] | None
) -> dict[str, tuple[int, int]]:
    """Writes the tokens of every pair to keep, a file per part; returns the numbers of pairs kept and read."""
    sides = (normalise.article, normalise.title) if layout.raw else (normalise.ready, normalise.ready)
    counted, so_far = {}, 0
    for part in layout.files:
        kept = read = 0
        with (folder / _between(part)).open("w", encoding="utf-8") as file:
            for raw_article, raw_title in layout.pairs(part):
                read += 1
                article, title = sides[0](raw_article), sides[1](raw_title)
                # Published test sets keep all their pairs.
                if part == "test" or filters.keeps(article, title):
                    file.write(f"{' '.join(article)}\t{' '.join(title)}\n")
                    kept += 1
                so_far += 1
                if progress is not None and so_far % 1000 == 0:
                    progress(so_far)
        counted[part] = (kept, read)
    return counted


Split = tuple[str, NDArray[np.int64]]  # a temporary file, and ascending line numbers in it


def _split(read: dict[str, tuple[int, int]], layout: Layout, settings: PairSettings) -> dict[str, Split]:
    """Assigns lines to parts."""
    n_train, n_read = read["train"]
    if not n_train:
        raise ValueError(
            f"none of {n_read:,} pairs passed the filters: loosen them (--shortest-article, --shortest-title, …)"
        )
    luck = np.random.default_rng(settings.seed)
    order = luck.permutation(n_train)
    drawn: dict[str, Split] = {}
    taken = 0
    for part, n in {"valid": settings.valid, "test": settings.test}.items():
        if part in layout.files:
            there = luck.permutation(read[part][0])
            rows = there if part == "test" else there[:n]
        elif part == "test" and not layout.raw and n is None:
            continue  # Gigaword's test set is a file of its own, which is missing
        else:
            rows = order[taken:][: min(HELD_OUT, n_train // 25) if n is None else n]
            taken += len(rows)
        if not len(rows):
            raise ValueError(
                f"the {part} part of {n_train:,} pairs would hold none: give more pairs, a larger --{part}, or less to "
                "the other parts"
            )
        drawn[part] = _between(part if part in layout.files else "train"), np.sort(rows)
    if taken >= n_train:
        raise ValueError(
            f"{taken:,} of {n_train:,} pairs would be held out and none is left to train on: lower --valid and --test"
        )
    return {"train": (_between("train"), np.sort(order[taken:])), **drawn}


def _count(folder: Path, split: Split) -> tuple[Counter[str], Counter[str]]:
    """Counts the words of the titles, and of the sentences."""
    titles: Counter[str] = Counter()
    articles: Counter[str] = Counter()
    for article, title in _rows(folder, *split):
        titles.update(title.split())
        articles.update(article.split())
    return titles, articles


def _number(folder: Path, part: str, split: Split, words: list[str]) -> dict[str, int]:
    """Writes the ids of a part, and its text unless it is for training; returns its size."""
    id_of = {word: n for n, word in enumerate(words)}
    sizes = {"pairs": len(split[1])}
    for at, side in enumerate(SIDES):
        ids, ends = array_names(part, side)
        with Writer(folder / ids, dtype_of(len(words))) as ids_file, Writer(folder / ends, ENDS) as ends_file:
            for pair in _rows(folder, *split):
                tokens = pair[at].split() + [EOS] * (side == "title")
                ids_file.add((id_of.get(token, 0) for token in tokens), len(tokens))
                ends_file.add([ids_file.length], 1)
        sizes[side] = ids_file.length
        if part != "train":
            with (folder / text_name(part, side)).open("w", encoding="utf-8") as file:
                file.writelines(f"{pair[at]}\n" for pair in _rows(folder, *split))
    return sizes


def _rows(folder: Path, file: str, rows: NDArray[np.int64]) -> Iterator[tuple[str, str]]:
    """The pairs in the given lines, which ascend, as tokens joined by spaces."""
    wanted = iter(rows.tolist())
    following = next(wanted, None)
    with (folder / file).open(encoding="utf-8", newline="\n") as lines:
        for number, line in enumerate(lines):
            if number == following:
                article, _, title = line.rstrip("\n").partition("\t")
                yield article, title
                following = next(wanted, None)


def _between(part: str) -> str:
    return f"{part}.kept"
