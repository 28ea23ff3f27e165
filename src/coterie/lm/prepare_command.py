"""The command `coterie lm prepare`: text to ids, with a bar while it reads and a summary when it is done."""

import time
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from coterie.lm.corpus import Corpus
from coterie.lm.corpus import prepare as write


def prepare(
    src: list[str] = typer.Argument(
        ..., metavar="SRC...", help="text files, plain or .xz, .gz, .zst; folders of them; or the name text8"
    ),
    out: Path = typer.Argument(..., metavar="OUT", help="the folder to write"),
    min_count: int = typer.Option(1, min=1, help="keep words that occur at least so often in the training part"),
    max_vocab: int | None = typer.Option(None, min=2, help="keep at most so many words, <unk> among them"),
    dev_chars: int | None = typer.Option(
        None,
        min=1,
        help="the text's last characters are the development part; 1,000,000 if no --dev is given, or a tenth of a "
        "text shorter than ten times that",
    ),
    dev: Path | None = typer.Option(None, help="the development part, in a file of its own"),
    test: Path | None = typer.Option(None, help="the test part, in a file of its own"),
    lower: bool = typer.Option(False, "--lower", help="lower-case the text"),
    eos: bool = typer.Option(False, "--eos", help="put <eos> at line ends"),
    force: bool = typer.Option(False, "--force", help="replace the corpus that is at OUT"),
) -> None:
    """Turns text into numbered words: text8 as it is used in papers is `prepare text8 OUT --min-count 11`."""
    console = Console()
    start = time.perf_counter()
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("reading", total=None)
        corpus = write(
            src,
            out,
            min_count=min_count,
            max_vocab=max_vocab,
            dev_chars=dev_chars,
            dev=dev,
            test=test,
            lower=lower,
            eos=eos,
            force=force,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    show(console, corpus, time.perf_counter() - start)


def show(console: Console, corpus: Corpus, seconds: float) -> None:
    """What was written."""
    chars = corpus.source["settings"]["dev_chars"]
    table = Table()
    for column, side in (("part", "left"), ("tokens", "right"), ("unknown", "right"), ("from", "left")):
        table.add_column(column, justify="right" if side == "right" else "left")
    for part, ids in (("train", corpus.train), ("dev", corpus.dev), ("test", corpus.test)):
        if ids is None:
            continue
        files = corpus.source["files"].get(part)
        names = [file["name"] for file in files] if files else []
        origin = f"{names[0]} … {names[-1]} ({len(names)} files)" if len(names) > 2 else ", ".join(names)
        unknown = int((ids == corpus.unk).sum()) / len(ids)
        table.add_row(part, f"{len(ids):,}", f"{unknown:.2%}", origin or f"the last {chars:,} characters")
    console.print(table)
    console.print(
        f"A vocabulary of {corpus.n_words:,} words, <unk> among them; {seconds:.1f} s; written to {corpus.path}",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )
