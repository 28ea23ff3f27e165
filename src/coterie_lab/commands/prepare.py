"""The commands `coterie lm prepare` and `coterie summarize prepare`."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from coterie_lab.commands.parameters import takes
from coterie_lab.data.filters import REASONS
from coterie_lab.data.settings import PairSettings, TextSettings

if TYPE_CHECKING:
    from coterie_lab.data.corpus import Corpus
    from coterie_lab.data.pairs import Pairs

Out = Annotated[Path, Argument(metavar="OUT", help="the folder to write")]
Force = Annotated[bool, Option("--force", help="replace what is at OUT")]


@takes(TextSettings)
def prepare_text(
    src: Annotated[
        list[str], Argument(metavar="SRC", help="text files, plain or .xz, .gz, .zst; folders of them; or text8")
    ],
    out: Out,
    force: Force = False,
    *,
    given: dict[str, Any],
) -> None:
    """Turn text into numbered words; `prepare text8 OUT --min-count 11` is text8 as papers use it."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from coterie_lab.data.corpus import prepare as write

    console = Console()
    start = time.perf_counter()
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("reading", total=None)
        corpus = write(
            src, out, force=force, progress=lambda done, total: bar.update(task, completed=done, total=total), **given
        )
    _show_text(console, corpus, time.perf_counter() - start)


def _show_text(console: Console, corpus: "Corpus", seconds: float) -> None:
    """Prints what was written."""
    chars = corpus.source["settings"]["dev_chars"]
    table = Table()
    for name in ("part", "tokens", "unknown", "from"):
        table.add_column(name, justify="right" if name in ("tokens", "unknown") else "left")
    for part, ids in (("train", corpus.train), ("dev", corpus.dev), ("test", corpus.test)):
        if ids is None:
            continue
        files = corpus.source["files"].get(part)
        names = [file["name"] for file in files] if files else []
        origin = f"{names[0]} … {names[-1]} ({len(names)} files)" if len(names) > 2 else ", ".join(names)
        pieces = (ids[n : n + (1 << 20)] for n in range(0, len(ids), 1 << 20))  # the ids may be larger than memory
        unknown = sum(int((piece == 0).sum()) for piece in pieces) / len(ids)
        table.add_row(part, f"{len(ids):,}", f"{unknown:.2%}", escape(origin) or f"the last {chars:,} characters")
    console.print(table)
    said = f"A vocabulary of {corpus.n_words:,} words, <unk> among them; {seconds:.1f} s; written to {corpus.path}"
    console.print(said, highlight=False, soft_wrap=True, markup=False)


@takes(PairSettings)
def prepare_pairs(
    src: Annotated[
        list[Path], Argument(metavar="SRC", help="files of pairs, sentence TAB title; folders of them; or Gigaword's")
    ],
    out: Out,
    force: Force = False,
    *,
    given: dict[str, Any],
) -> None:
    """Turn pairs into numbered words: lower case, Penn Treebank tokens, digits as #, unfit pairs left out."""
    from rich.progress import Progress, TextColumn

    from coterie_lab.data.prepare_pairs import prepare as write

    console = Console()
    start = time.perf_counter()
    with Progress(TextColumn("reading: {task.completed:,} pairs"), console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        pairs = write(src, out, force=force, progress=lambda done: bar.update(task, completed=done), **given)
    _show_pairs(console, pairs, time.perf_counter() - start)


def _show_pairs(console: Console, pairs: "Pairs", seconds: float) -> None:
    """Prints what was left out, and what was written."""
    table = Table()
    for name in ("part", "pairs", "words of sentences", "unknown", "words of titles", "unknown"):
        table.add_column(name, justify="left" if name == "part" else "right")
    for name, part in pairs.parts.items():
        cells = []
        for side in (part.article, part.title):
            cells += [f"{len(side.ids):,}", f"{float((side.ids == 0).mean()):.2%}"]
        table.add_row(name, f"{len(part):,}", *cells)
    console.print(table)
    for reason, n in pairs.source["left_out"].items():
        console.print(f"left out: {n:>9,}  {REASONS[reason]}", highlight=False)
    read = sum(pairs.source["read"].values())
    said = f"A vocabulary of {pairs.n_words:,} words; {read:,} pairs read in {seconds:.1f} s, written to {pairs.path}"
    console.print(said, highlight=False, soft_wrap=True, markup=False)
