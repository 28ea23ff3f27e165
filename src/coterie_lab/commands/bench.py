"""The command `coterie bench`: what it takes."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from coterie_lab.bench.names import NAMES


def bench(
    out: Annotated[Path, Option(help="the folder for bench.json, bench.md and bench.png")] = Path("runs/bench"),
    shapes: Annotated[
        list[str] | None,
        Option("--shape", help="V,d,tokens; may be repeated", show_default="a few for this device"),
    ] = None,
    heads: Annotated[
        str, Option(help="heads to time, with commas between; also the others of `coterie lm train --head`")
    ] = ", ".join(NAMES),
    sweep: Annotated[bool, Option(help="also time V from 2^14 to 2^20")] = True,
    device: Annotated[str, Option(help="auto, cpu or cuda")] = "auto",
    seconds: Annotated[float, Option(min=0.01, help="time for each measurement")] = 1.0,
    redraw: Annotated[
        Path | None, Option(help="measure nothing: write the tables and the plot of this bench.json")
    ] = None,
) -> None:
    """Time heads side by side: forward, training step, memory and top-k, against what the device allows."""
    from coterie_lab.bench import report
    from coterie_lab.bench.methods import check_name
    from coterie_lab.bench.shapes import STANDARD, SWEEP, Shape
    from coterie_lab.training.device import choose_device

    if redraw is not None:
        report.write(out, *report.read(redraw))
    else:
        on = choose_device(device)  # type: ignore[arg-type]
        names = [name.strip() for name in heads.split(",")]
        for name in names:
            check_name(name)
        chosen = [Shape.parse(text) for text in shapes or ()] or STANDARD[on.type]
        report.compare(out, names, chosen, SWEEP[on.type] if sweep else (), on, seconds, typer.echo)
    typer.echo(f"written to {out}")
