"""The command `coterie report`: what it takes and prints."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option


def report(
    runs: Annotated[list[Path], Argument(metavar="RUN...", help="folders of runs, compared if there are several")],
    out: Annotated[Path, Option(metavar="FILE", help="the page")] = Path("report.html"),
    figures: Annotated[Path | None, Option(metavar="DIR", help="write figures too, as PNG and SVG")] = None,
) -> None:
    """Write one page about runs, to open offline: figures, curves and an explorer of the clusters."""
    from coterie_lab.explorer.collect import collect
    from coterie_lab.explorer.page import build
    from coterie_lab.training.run import write_whole

    contents = collect(runs)
    page = build(contents)
    if figures is not None:
        from coterie_lab.explorer.figures import figures as draw

        typer.echo(f"{len(draw(contents, figures))} figures in {figures}")
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, page)
    typer.echo(f"open {out.resolve().as_uri()}")
