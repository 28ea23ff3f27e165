"""Sources of text: files, folders, and text8 by its name."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from coterie_lab.data import text8
from coterie_lab.data.reading import Advance, TextFile, plain
from coterie_lab.data.text8 import Progress


def read(files: Sequence[TextFile], advance: Advance) -> Iterator[str]:
    """The concatenated text of files; each begins on a new line."""
    last = "\n"
    for file in files:
        if last != "\n":
            yield "\n"
        for block in file.blocks(advance):
            yield block
            last = block[-1:] or last


def advancing(progress: Progress | None, total: int) -> Advance:
    """Turns reports of more bytes into reports of the sum so far, of `total`."""
    done = 0

    def advance(n: int) -> None:
        nonlocal done
        done += n
        if progress is not None:
            progress(done, total)

    return advance


def find(
    sources: Sequence[str | Path], apart: Collection[Path] = (), progress: Progress | None = None
) -> list[TextFile]:
    """The files that the sources name; those in `apart` are left out of folders and refused if named.

    An existing file is read as it is, a folder stands for its files (see `in_folder`), and the name `text8`, where no
    file has it, for the text of that name.
    """
    others = {path.resolve() for path in apart}
    files = []
    for source in sources:
        path = Path(source)
        if path.is_file():
            if path.resolve() in others:
                raise ValueError(f"{source} was given as text to train on and to be kept apart: give it once")
            files.append(path)
        elif str(source) == text8.NAME:  # not ./text8, which names a folder
            files.append(text8.find(progress))
        elif path.is_dir():
            files += [path for path in in_folder(path) if path.resolve() not in others]
        elif path.exists():
            raise OSError(f"{source} is no regular file: the text is read twice, so save it in a file first")
        else:
            raise FileNotFoundError(f"{source} does not exist: give a text file, a folder of them, or the name text8")
    for path in files:
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is empty: give a file with text, or leave it out")
    if not files:
        raise ValueError("no text to train on: give a text file, a folder of them, or the name text8")
    return [TextFile.at(path) for path in files]


def check_made_from(files: Iterable[Path], ready: Path, source: dict[str, Any], **settings: Any) -> None:
    """Raises if a prepared folder was made from other files, by names and sizes, or with other settings."""
    made = sorted((file["name"], file["bytes"]) for part in source["files"].values() for file in part)
    given = sorted((path.name, path.stat().st_size) for path in files)
    if made != given:
        before, now = (", ".join(f"{name} ({size:,} bytes)" for name, size in found) for found in (made, given))
        raise ValueError(f"{ready} was made from {before}, not from {now}: remove it, or choose another --out")
    check_made_with(ready, source, **settings)


def check_made_with(ready: Path, source: dict[str, Any], **settings: Any) -> None:
    """Raises if a prepared folder was made with other settings."""
    for name, value in settings.items():
        if (then := source["settings"][name]) != value:
            raise ValueError(f"{ready} was made with {name} {then}, not {value}: remove it, or choose another --out")


def in_folder(folder: Path) -> list[Path]:
    """A folder's text files at any depth, sorted: those ending in .txt if there are any, else all not hidden."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    if named := [path for path in files if plain(path).suffix == ".txt"]:
        files = named
    if not files:
        raise FileNotFoundError(f"{folder} holds no text files: give a folder with some, or the files themselves")
    taken: dict[Path, Path] = {}
    for path in files:
        if (other := taken.setdefault(plain(path), path)) != path:
            raise ValueError(f"{folder} holds {other.name} and {path.name}, the same text twice: remove one of them")
    return files
