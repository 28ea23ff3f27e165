"""`coterie bench`: measures every head on this machine's device and writes one report."""

from pathlib import Path

import typer

from coterie_lab.bench import report
from coterie_lab.bench.methods import check_name
from coterie_lab.bench.names import NAMES
from coterie_lab.bench.shapes import STANDARD, SWEEP, Shape
from coterie_lab.training.device import choose_device


def bench(
    out: Path = typer.Option(Path("runs/bench"), help="folder for bench.json, bench.md and bench.png"),
    shapes: list[str] = typer.Option([], "--shape", help="V,d,tokens; may be repeated; none: the standard ones"),
    heads: str = typer.Option(",".join(NAMES), help="which heads, separated by commas; also any of `coterie lm train`"),
    sweep: bool = typer.Option(True, help="also sweep V from 2^14 to 2^20"),
    device: str = typer.Option("auto", help="auto, cpu or cuda"),
    seconds: float = typer.Option(1.0, min=0.01, help="time given to each measurement"),
    redraw: Path | None = typer.Option(
        None, help="a bench.json to write the tables and the plot from, without measuring"
    ),
) -> None:
    """Times every head side by side: forward, training step, memory and top-k, against the floor."""
    if redraw is not None:
        report.write(out, *report.read(redraw))
    else:
        on = choose_device(device)  # type: ignore[arg-type]
        names = [name.strip() for name in heads.split(",")]
        for name in names:
            check_name(name)
        chosen = [Shape.parse(text) for text in shapes] or STANDARD[on.type]
        report.compare(out, names, chosen, SWEEP[on.type] if sweep else (), on, seconds, typer.echo)
    typer.echo(f"written to {out}")
