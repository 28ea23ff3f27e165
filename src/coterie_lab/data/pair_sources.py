"""Sources of pairs: tab-separated files of raw text, and Gigaword's layout; read line by line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from coterie_lab.data.reading import PACKED, TextFile, plain

# The folders of Gigaword's files in the usual copies.
FOLDERS = (".", "train", "Giga")
GIGAWORD = {
    "train": ("train.article.txt", "train.title.txt"),
    "valid": ("valid.article.filter.txt", "valid.title.filter.txt"),
    "test": ("input.txt", "task1_ref0.txt"),
}


@dataclass(frozen=True)
class Layout:
    """The files of each part; a part is read from one file of two columns, or from two files side by side."""

    raw: bool  # whether the text is not tokenised yet
    files: dict[str, list[tuple[TextFile, ...]]]  # part → its files; a single `train` is still to be split

    def pairs(self, part: str) -> Iterator[tuple[str, str]]:
        """Sentence and title of each pair."""
        for files in self.files[part]:
            yield from (columns(*files) if len(files) == 1 else side_by_side(*files))


def find(sources: Sequence[str | Path]) -> Layout:
    """Recognises sources: tab-separated files, folders of them, or a folder in Gigaword's layout."""
    paths = [Path(source) for source in sources]
    if missing := next((path for path in paths if not path.exists()), None):
        raise FileNotFoundError(f"{missing} does not exist: give files of pairs, or a folder that holds them")
    if len(paths) == 1 and (found := _gigaword(paths[0])):
        return Layout(False, found)
    files: list[tuple[TextFile, ...]] = []
    for path in paths:
        inside = sorted(file for file in path.rglob("*") if plain(file).suffix == ".tsv") if path.is_dir() else [path]
        if not inside:
            raise FileNotFoundError(
                f"{path} holds no pairs: expected files ending in .tsv, a sentence TAB a title in each line, or "
                f"Gigaword's {GIGAWORD['train'][0]} and {GIGAWORD['train'][1]}"
            )
        files += [(TextFile.at(file),) for file in inside]
    return Layout(True, {"train": files})


def columns(file: TextFile) -> Iterator[tuple[str, str]]:
    """The pairs of a file: a sentence, a tab, a title."""
    for number, line in enumerate(file.lines(), 1):
        sides = line.split("\t")
        if len(sides) != 2:
            raise ValueError(
                f"{file}, line {number:,}: {len(sides)} columns; expected a sentence, one tab, a title: {line[:60]!r}"
            )
        for side, name in zip(sides, ("sentence", "title"), strict=True):
            _check_side(file, number, side, name)
        yield sides[0], sides[1]


def side_by_side(articles: TextFile, titles: TextFile) -> Iterator[tuple[str, str]]:
    """The pairs of two files, line by line."""
    for number, (article, title) in enumerate(zip_longest(articles.lines(), titles.lines()), 1):
        if article is None or title is None:
            short, long = (articles, titles) if article is None else (titles, articles)
            raise ValueError(
                f"{short} ends after line {number - 1:,} and {long} has a line {number:,}: each line of one belongs to "
                "a line of the other"
            )
        _check_side(articles, number, article, "sentence")
        _check_side(titles, number, title, "title")
        yield article, title


def _check_side(file: TextFile, number: int, side: str, name: str) -> None:
    if not side.strip():
        raise ValueError(f"{file}, line {number:,}: the {name} is empty; give one, or remove the pair")


def _gigaword(folder: Path) -> dict[str, list[tuple[TextFile, ...]]]:
    """The parts that a folder in Gigaword's layout holds; {} if it is not one."""
    if not folder.is_dir():
        return {}
    found: dict[str, list[tuple[TextFile, ...]]] = {}
    for part, names in GIGAWORD.items():
        files = tuple(file for name in names if (file := _named(folder, name)))
        if len(files) == 1:
            lacks = next(name for name in names if not _named(folder, name))
            raise FileNotFoundError(f"{folder} holds {files[0].name} and no {lacks}: both sides are needed")
        if files:
            found[part] = [tuple(map(TextFile.at, files))]
    return found if "train" in found else {}


def _named(folder: Path, name: str) -> Path | None:
    options = (folder / inside / f"{name}{suffix}" for inside in FOLDERS for suffix in ("", *PACKED))
    return next((path for path in options if path.is_file()), None)
