"""The command `coterie summarize prepare`: pairs to ids, with what was left out and why."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.table import Table
from typer import Argument, Option

from coterie_lab.commands.parameters import takes
from coterie_lab.data.filters import REASONS, WORDS, Limits

if TYPE_CHECKING:
    from coterie_lab.data.pairs import Pairs


@takes(Limits)
def prepare(
    src: Annotated[
        list[Path],
        Argument(
            metavar="SRC", help="files of raw pairs, sentence TAB title, or folders of them; or Gigaword's own folder"
        ),
    ],
    out: Annotated[Path, Argument(metavar="OUT", help="the folder to write")],
    max_vocab: Annotated[
        int, Option(min=3, help="the most frequent words of the titles, <unk> and <eos> among them")
    ] = WORDS,
    min_count: Annotated[int, Option(min=1, help="keep words that occur at least so often in the titles")] = 1,
    source_words: Annotated[
        bool, Option("--source-words", help="fill the vocabulary up with the most frequent words of the sentences")
    ] = False,
    valid: Annotated[int | None, Option(min=1, help="pairs for validation: 2,000, or a 25th of few pairs")] = None,
    test: Annotated[int | None, Option(min=1, help="pairs for the test, likewise")] = None,
    seed: Annotated[int, Option(min=0, help="which pairs those are")] = 0,
    force: Annotated[bool, Option("--force", help="replace the pairs that are at OUT")] = False,
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
        pairs = write(
            src, out, max_vocab=max_vocab, min_count=min_count, source_words=source_words, valid=valid, test=test,
            seed=seed, limits=Limits(**given), force=force,
            progress=lambda done: bar.update(task, completed=done),
        )  # fmt: skip
    show(console, pairs, time.perf_counter() - start)


def show(console: Console, pairs: "Pairs", seconds: float) -> None:
    """What was left out, and what was written."""
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
    console.print(
        f"A vocabulary of {pairs.n_words:,} words; {read:,} pairs read in {seconds:.1f} s, "
        f"written to {pairs.path}",
        highlight=False, soft_wrap=True, markup=False,
    )  # fmt: skip
