"""The report of a comparison of heads: two tables, its JSON and its plot.

Shapes: T tokens, D width, V words.
"""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from coterie_lab.bench.heads import Row, rows
from coterie_lab.bench.shapes import Machine, Shape
from coterie_lab.training.environment import describe
from coterie_lab.training.run import write_json, write_whole

OURS = ("self-organized", "self-organized-graph")
COLUMNS = (
    "head", "forward ms", "step ms", "(middle half)", "ratio", "over the floor", "host ms", "loop ms", "peak MB",
    "topk(10) ms", "of 64 rows",
)  # fmt: skip


def compare(
    out: Path,
    names: Sequence[str],
    shapes: Sequence[Shape],
    sweep: Sequence[Shape],
    device: torch.device,
    seconds: float,
    say: Callable[[str], None],
) -> None:
    """Measures the heads at the shapes and in the sweep; prints and writes the results after each."""
    out.mkdir(parents=True, exist_ok=True)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    machine = Machine.measured(device, dtype)
    environment = {**describe(), "precision": str(dtype).removeprefix("torch.")}
    measured: tuple[list[Row], list[Row]] = ([], [])
    todo = (
        rows(shapes, names, device, dtype, machine, seconds),
        rows(sweep, names, device, dtype, machine, seconds / 2, inference=False),
    )
    for part, found in zip(measured, todo, strict=True):
        for row in found:
            part.append(row)
            step = row.error if row.step is None else f"{row.step:9.3f} ms"
            say(f"{row.shape!s:34} {row.method:24} {step}")
            write(out, environment, machine, *measured)


def write(out: Path, environment: dict[str, Any], machine: Machine, rows: Sequence[Row], sweep: Sequence[Row]) -> None:
    """Writes bench.json and bench.md, and bench.png if there is a sweep."""
    content = {
        "environment": environment,
        "machine": asdict(machine),
        "rows": [asdict(row) for row in rows],
        "sweep": [asdict(row) for row in sweep],
        "exponents": exponents(sweep),
    }
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "bench.json", content)
    write_whole(out / "bench.md", markdown(environment, machine, rows, sweep))
    if sweep:
        plot(sweep, out / "bench.png")


def read(path: Path) -> tuple[dict[str, Any], Machine, list[Row], list[Row]]:
    """What `write` wrote to a bench.json."""

    def made(items: Iterable[dict[str, Any]]) -> list[Row]:
        return [Row(**{**item, "shape": Shape(**item["shape"])}) for item in items]

    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return content["environment"], Machine(**content["machine"]), made(content["rows"]), made(content["sweep"])
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path} is not a bench.json that `coterie bench` wrote") from error


def markdown(environment: dict[str, Any], machine: Machine, rows: Sequence[Row], sweep: Sequence[Row]) -> str:
    """Both tables as Markdown, and how they were measured."""
    lines = ["# Heads side by side", ""]
    lines += [f"- {name}: {_told(value)}" for name, value in environment.items() if value]
    lines += [
        f"- measured in this run: {machine.bytes_per_second / 1e12:.3g} TB/s copied, "
        f"{machine.operations_per_second / 1e12:.3g} TFLOP/s multiplied",
        "- medians; a step is forward + backward with all gradients, projections included; Zipf targets, clusters as "
        "uneven as real ones",
        "- ratio: time over ours (the CUDA graph's where there is one); floor: the word matrix read twice and its "
        "gradient written once, and two projections, one of the tokens, one of them or of the clusters, at the rates "
        "measured",
        "- host, loop: of a step in a plain loop that does not wait, until the host has launched it, and in all",
    ]
    for shape in dict.fromkeys(row.shape for row in rows):
        at_shape = [row for row in rows if row.shape == shape]
        ours = min((row.step for row in at_shape if row.method in OURS and row.step is not None), default=None)
        lines += ["", f"## {shape}", "", *table(COLUMNS, [_cells(row, ours) for row in at_shape])]
    if sweep:
        lines += ["", "## Against the size of the vocabulary", "", *_sweep_table(sweep)]
        lines += ["", "![time against V](bench.png)"]
    return "\n".join(lines) + "\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[str] = ("head",)) -> list[str]:
    """A table in Markdown; numbers stand on the right, the columns of words on the left."""
    lines = [columns, ["---" if column in words else "--:" for column in columns], *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _told(value: Any) -> str:
    """Part of the description of an environment, in one line."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_told(one)}" for name, one in value.items() if one)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _cells(row: Row, ours: float | None) -> list[str]:
    if row.step is None:
        return [row.method, row.error or "–", *["–"] * (len(COLUMNS) - 2)]
    times = [_cell(value) for value in (row.host, row.loop)]
    return [
        row.method, _cell(row.forward), _cell(row.step), f"{_cell(row.step_low)}–{_cell(row.step_high)}",
        f"{row.step / ours:.2f}×" if ours else "–", f"{row.step / row.floor:.1f}×" if row.floor else "–", *times,
        f"{row.peak_bytes / 1e6:,.0f}" if row.peak_bytes is not None else "–", _cell(row.topk_1), _cell(row.topk_64),
    ]  # fmt: skip


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _sweep_table(sweep: Sequence[Row]) -> list[str]:
    sizes = sorted({row.shape.words for row in sweep})
    of = {(row.method, row.shape.words): row for row in sweep}
    fitted, lines = exponents(sweep), []
    for method in dict.fromkeys(row.method for row in sweep):
        cells = []
        for row in (of.get((method, size)) for size in sizes):
            done = row is not None and row.step and row.floor
            cells.append(f"{row.step:.3g} ({row.step / row.floor:.1f}×)" if done else "–")  # type: ignore[union-attr, operator]
        lines.append([method, *cells, _cell(fitted.get(method))])
    columns = ("head", *(f"2^{round(math.log2(size))}" for size in sizes), "e")
    told = "Step ms (times the floor), and the exponent e of time ∝ Vᵉ fitted to the upper half of the sizes."
    return [told, "", *table(columns, lines)]


def exponents(sweep: Sequence[Row]) -> dict[str, float]:
    """The slope of log time against log V over the upper half of the sizes, by method."""
    slopes = {}
    for method in dict.fromkeys(row.method for row in sweep):
        points = sorted((r.shape.words, r.step) for r in sweep if r.method == method and r.step is not None)
        points = points[len(points) // 2 :]
        if len(points) >= 2:
            slopes[method] = slope(points)
    return slopes


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the straight line through the points, both axes logarithmic."""
    x, y = ([math.log(value) for value in values] for values in zip(*points, strict=True))
    return statistics.linear_regression(x, y).slope


def plot(sweep: Sequence[Row], path: Path) -> None:
    """Time of a step against V, both on logarithmic scales."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:  # a machine that only measures: draw the plot from its bench.json elsewhere
        return
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    # Colours and markers that differ for the colour-blind, and in grey.
    styles = zip(("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"), "osD^vPX", strict=True)
    for method, (colour, marker) in zip(dict.fromkeys(row.method for row in sweep), styles, strict=False):
        points = [(r.shape.words, r.step) for r in sweep if r.method == method and r.step is not None]
        axes.plot(*zip(*points, strict=True), label=method, color=colour, marker=marker, linewidth=1.5, markersize=5)
    floor = sorted({(row.shape.words, row.floor) for row in sweep if row.floor is not None})
    axes.plot(*zip(*floor, strict=True), label="floor", color="#888888", linestyle="--")
    axes.set(yscale="log", xlabel="classes V", ylabel="forward + backward, ms")
    axes.set_xscale("log", base=2)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)
