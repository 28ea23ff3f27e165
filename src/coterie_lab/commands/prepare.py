"""The command `coterie lm prepare`: text to ids, with a bar while it reads and a summary when it is done."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

if TYPE_CHECKING:
    from coterie_lab.data.corpus import Corpus


def prepare(
    src: Annotated[
        list[str],
        Argument(metavar="SRC", help="text files, plain or .xz, .gz, .zst; folders of them; or the name text8"),
    ],
    out: Annotated[Path, Argument(metavar="OUT", help="the folder to write")],
    min_count: Annotated[int, Option(min=1, help="keep words that occur at least so often in the training part")] = 1,
    max_vocab: Annotated[int | None, Option(min=2, help="keep at most so many words, <unk> among them")] = None,
    dev_chars: Annotated[
        int | None,
        Option(
            min=1,
            help="the text's last characters are the development part; 1,000,000 if no --dev is given, or a tenth of "
            "a text shorter than ten times that",
        ),
    ] = None,
    dev: Annotated[Path | None, Option(help="the development part, in a file of its own")] = None,
    test: Annotated[Path | None, Option(help="the test part, in a file of its own")] = None,
    lower: Annotated[bool, Option("--lower", help="lower-case the text")] = False,
    eos: Annotated[bool, Option("--eos", help="put <eos> at line ends")] = False,
    force: Annotated[bool, Option("--force", help="replace the corpus that is at OUT")] = False,
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
            src, out, min_count=min_count, max_vocab=max_vocab, dev_chars=dev_chars, dev=dev, test=test, lower=lower,
            eos=eos, force=force, progress=lambda done, total: bar.update(task, completed=done, total=total),
        )  # fmt: skip
    show(console, corpus, time.perf_counter() - start)


def show(console: Console, corpus: "Corpus", seconds: float) -> None:
    """What was written."""
    chars = corpus.source["settings"]["dev_chars"]
    table = Table()
    table.add_column("part")
    table.add_column("tokens", justify="right")
    table.add_column("unknown", justify="right")
    table.add_column("from")
    for part, ids in (("train", corpus.train), ("dev", corpus.dev), ("test", corpus.test)):
        if ids is None:
            continue
        files = corpus.source["files"].get(part)
        names = [file["name"] for file in files] if files else []
        origin = f"{names[0]} … {names[-1]} ({len(names)} files)" if len(names) > 2 else ", ".join(names)
        pieces = (ids[n : n + (1 << 20)] for n in range(0, len(ids), 1 << 20))  # the ids may be larger than memory
        unknown = sum(int((piece == corpus.unk).sum()) for piece in pieces) / len(ids)
        table.add_row(part, f"{len(ids):,}", f"{unknown:.2%}", escape(origin) or f"the last {chars:,} characters")
    console.print(table)
    console.print(
        f"A vocabulary of {corpus.n_words:,} words, <unk> among them; {seconds:.1f} s; written to {corpus.path}",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )
