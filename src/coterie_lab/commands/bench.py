"""`coterie bench`: measures every head on this machine's device and writes one report."""

from pathlib import Path

import torch
import typer
from rich.console import Console

from coterie_lab.bench import report
from coterie_lab.bench.floor import Machine
from coterie_lab.bench.methods import NAMES, check_name
from coterie_lab.bench.run import CPU_SHAPES, GPU_SHAPES, Row, Shape, rows
from coterie_lab.training.device import choose_device
from coterie_lab.training.environment import describe, versions_of

SWEEP = tuple(2**k for k in range(14, 21))


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
    console = Console()
    if redraw is not None:
        report.write(out, *report.read(redraw))
        console.print(f"written to {out}")
        return
    on = choose_device(device)  # type: ignore[arg-type]
    names = [name.strip() for name in heads.split(",")]
    for name in names:
        check_name(name)
    out.mkdir(parents=True, exist_ok=True)
    dtype = torch.bfloat16 if on.type == "cuda" else torch.float32
    chosen = [_shape(text) for text in shapes] or list(GPU_SHAPES if on.type == "cuda" else CPU_SHAPES)
    machine = Machine.measured(on, dtype)
    environment = _environment(on, dtype)
    measured: list[Row] = []
    swept: list[Row] = []
    for row in rows(chosen, names, on, dtype, machine, seconds):
        measured.append(row)
        _say(console, row)
        report.write(out, environment, machine, measured, swept)
    if sweep:
        width, tokens = (512, 4096) if on.type == "cuda" else (256, 512)
        sizes = [Shape(words, width, tokens) for words in SWEEP]
        for row in rows(sizes, names, on, dtype, machine, seconds / 2, inference=False):
            swept.append(row)
            _say(console, row)
        report.write(out, environment, machine, measured, swept)
    console.print(f"written to {out}")


def _say(console: Console, row: Row) -> None:
    step = row.error if row.step is None else f"{row.step:9.3f} ms"
    console.print(f"{row.shape!s:34} {row.method:24} {step}", highlight=False)


def _shape(text: str) -> Shape:
    try:
        words, width, tokens = (int(part) for part in text.split(","))
        if min(words, width, tokens) < 1:
            raise ValueError
    except ValueError:
        raise ValueError(
            f"--shape takes V,d,tokens, three whole numbers such as 131072,1024,8192; got {text!r}"
        ) from None
    return Shape(words, width, tokens)


def _environment(device: torch.device, dtype: torch.dtype) -> dict[str, str]:
    found = describe()
    hardware = found["hardware"]
    on_cpu = f"{hardware['cpu']}, {hardware['threads']} threads"
    versions = found["versions"] | versions_of("cut_cross_entropy", "liger_kernel")
    return {
        "date": found["date"],
        "hardware": torch.cuda.get_device_name() if device.type == "cuda" else on_cpu,
        "versions": ", ".join(f"{name} {value}" for name, value in versions.items()),
        "command": found["command"],
        "precision": str(dtype).removeprefix("torch."),
    }
