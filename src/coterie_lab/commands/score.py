"""The command `coterie summarize score`: ROUGE of summaries, one a line, with its intervals."""

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

LIMIT = 75  # bytes of a DUC-2004 summary
NAMES = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}


class Mode(StrEnum):
    """How to score."""

    f1 = "f1"
    duc = "duc"


def score(
    hypotheses: Annotated[Path, Argument(metavar="HYPOTHESES", help="the summaries, one a line")],
    reference: Annotated[
        list[Path] | None, Option(metavar="FILE", help="what they should say, line by line; repeat it for several")
    ] = None,
    references: Annotated[
        Path | None, Option(metavar="DIR", help="a folder with task1_ref0.txt, …, as Gigaword's and DUC's are")
    ] = None,
    mode: Annotated[
        Mode | None,
        Option(
            help=f"f1: full-length F1 against one reference; duc: recall within {LIMIT} bytes against all, as DUC-2004 "
            "is scored; otherwise f1 with one reference, duc with several"
        ),
    ] = None,
    stem: Annotated[bool, Option("--stem", help="stem words in f1 mode; duc always does")] = False,
    json_file: Annotated[Path | None, Option("--json", metavar="FILE", help="also write the figures there")] = None,
) -> None:
    """Score summaries by ROUGE-1, ROUGE-2 and ROUGE-L, with 95% bootstrap intervals."""
    from coterie_lab.scoring.bootstrap import interval
    from coterie_lab.scoring.references import read_lines, read_references, reference_files
    from coterie_lab.scoring.rouge import full_length, limited_recall
    from coterie_lab.training.environment import describe, versions_of
    from coterie_lab.training.run import write_json

    files = reference_files(reference or [], references)
    mode = mode or (Mode.f1 if len(files) == 1 else Mode.duc)
    if mode is Mode.f1 and len(files) > 1:
        raise ValueError(f"--mode f1 takes one reference; got {len(files)}: give one of them, or --mode duc")
    given = read_lines(hypotheses)
    wanted = [read_references(file, hypotheses, len(given)) for file in files]
    if mode is Mode.f1:
        scores = full_length(given, wanted[0], stem=stem)
    else:
        scores = limited_recall(given, list(zip(*wanted, strict=True)), LIMIT)
    intervals = {name: interval(per_item) for name, per_item in asdict(scores).items()}
    empty = sum(not line.strip() for line in given)

    what = "full-length F1" if mode is Mode.f1 else f"recall within {LIMIT} bytes"
    against = "1 reference" if len(files) == 1 else f"{len(files)} references"
    note = f" ({empty:,} empty)" if empty else ""
    table = Table(title=escape(f"{hypotheses.name}: {len(given):,} summaries{note}, {what}, {against}, × 100"))
    for heading in ("", "mean", "95% interval"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, (low, mean, high) in intervals.items():
        table.add_row(NAMES[name], f"{100 * mean:.2f}", f"{100 * low:.2f} – {100 * high:.2f}")
    Console().print(table)
    if json_file is not None:
        environment = describe()
        environment["versions"] |= versions_of("rouge-score", "nltk")
        found = {
            "hypotheses": str(hypotheses),
            "references": [str(file) for file in files],
            "mode": mode.value,
            "limit": LIMIT if mode is Mode.duc else None,
            "stem": stem or mode is Mode.duc,
            "items": len(given),
            "empty": empty,
            "scores": {name: found._asdict() for name, found in intervals.items()},
            "environment": environment,
        }
        json_file.parent.mkdir(parents=True, exist_ok=True)
        write_json(json_file, found)
        typer.echo(f"written to {json_file}")
