"""The bench's two tables, its JSON and its plot.

Shapes: T tokens, D width, V words.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from coterie_lab.bench.floor import Machine
from coterie_lab.bench.run import Row, Shape

OURS = ("self-organized", "self-organized-graph")


def write(out: Path, environment: dict[str, str], machine: Machine, rows: Sequence[Row], sweep: Sequence[Row]) -> None:
    """Writes bench.json and bench.md, and bench.png if there is a sweep."""
    out.mkdir(parents=True, exist_ok=True)
    content = {
        "environment": environment,
        "machine": asdict(machine),
        "rows": [asdict(row) for row in rows],
        "sweep": [asdict(row) for row in sweep],
        "exponents": exponents(sweep),
    }
    (out / "bench.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (out / "bench.md").write_text(markdown(environment, machine, rows, sweep), encoding="utf-8")
    if sweep:
        plot(sweep, out / "bench.png")


def read(path: Path) -> tuple[dict[str, str], Machine, list[Row], list[Row]]:
    """What `write` wrote to a bench.json."""

    def rows(items: Iterable[dict[str, object]]) -> list[Row]:
        return [Row(**{**item, "shape": Shape(**item["shape"])}) for item in items]  # type: ignore[arg-type]

    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return content["environment"], Machine(**content["machine"]), rows(content["rows"]), rows(content["sweep"])
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path} is not a bench.json that `coterie bench` wrote") from error


def markdown(environment: dict[str, str], machine: Machine, rows: Sequence[Row], sweep: Sequence[Row]) -> str:
    """Both tables, and how they were measured."""
    lines = ["# Heads side by side", ""]
    lines += [f"- {name}: {value}" for name, value in environment.items()]
    lines += [
        f"- measured in this run: {machine.bytes_per_second / 1e12:.3g} TB/s copied, "
        f"{machine.operations_per_second / 1e12:.3g} TFLOP/s multiplied",
        "- medians; a step is forward + backward with all gradients, projections included; Zipf targets, clusters as "
        "uneven as real ones",
        "- ratio: time over ours (the CUDA graph's where there is one); floor: the word matrix read twice and its "
        "gradient written once, and two projections, one of the tokens, one of them or of the clusters, at the rates "
        "measured",
    ]
    for shape in dict.fromkeys(row.shape for row in rows):
        lines += ["", f"## {shape}", ""]
        lines += _table([row for row in rows if row.shape == shape])
    if sweep:
        lines += [
            "",
            "## Against the size of the vocabulary",
            "",
            *_sweep_table(sweep),
            "",
            "![time against V](bench.png)",
        ]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Row]) -> list[str]:
    ours = min((row.step for row in rows if row.method in OURS and row.step is not None), default=math.nan)
    lines = [
        "| head | forward ms | step ms | (middle half) | ratio | over the floor | peak MB | topk(10) ms | of 64 rows |",
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for row in rows:
        if row.step is None:
            lines.append(f"| {row.method} | {row.error or '–'} |" + " – |" * 7)
            continue
        spread = f"{row.step_low:.3g}–{row.step_high:.3g}"
        peak = None if row.peak_bytes is None else row.peak_bytes / 1e6
        over = None if row.floor is None else row.step / row.floor
        cells = (
            _cell(row.forward),
            _cell(row.step),
            spread,
            f"{row.step / ours:.2f}×",
            f"{over:.1f}×" if over else "–",
        )
        rest = (f"{peak:,.0f}" if peak is not None else "–", _cell(row.topk_1), _cell(row.topk_64))
        lines.append(f"| {row.method} | " + " | ".join((*cells, *rest)) + " |")
    return lines


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _sweep_table(sweep: Sequence[Row]) -> list[str]:
    sizes = sorted({row.shape.words for row in sweep})
    fitted = exponents(sweep)
    lines = [
        "Step ms (times the floor), and the exponent e of time ∝ Vᵉ fitted to the upper half of the sizes.",
        "",
        "| head | " + " | ".join(f"2^{round(math.log2(size))}" for size in sizes) + " | e |",
        "| --- |" + " --: |" * (len(sizes) + 1),
    ]
    for method in dict.fromkeys(row.method for row in sweep):
        of_size = {row.shape.words: row for row in sweep if row.method == method}
        cells = []
        for size in sizes:
            row = of_size.get(size)
            done = row is not None and row.step is not None and row.floor is not None
            cells.append(f"{row.step:.3g} ({row.step / row.floor:.1f}×)" if done else "–")  # type: ignore[union-attr, operator]
        lines.append(f"| {method} | " + " | ".join(cells) + f" | {_cell(fitted.get(method))} |")
    return lines


def exponents(sweep: Sequence[Row]) -> dict[str, float]:
    """The slope of log time against log V over the upper half of the sizes, by method."""
    slopes = {}
    for method in dict.fromkeys(row.method for row in sweep):
        points = [
            (math.log(r.shape.words), math.log(r.step)) for r in sweep if r.method == method and r.step is not None
        ]
        points = sorted(points)[len(points) // 2 :]
        if len(points) >= 2:
            x_mean = sum(x for x, _ in points) / len(points)
            y_mean = sum(y for _, y in points) / len(points)
            slope = sum((x - x_mean) * (y - y_mean) for x, y in points) / sum((x - x_mean) ** 2 for x, _ in points)
            slopes[method] = slope
    return slopes


def plot(sweep: Sequence[Row], path: Path) -> None:
    """Time of a step against V, both on logarithmic scales."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:  # a machine that only measures; the plot is drawn from bench.json elsewhere
        return
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    # Colours and markers that stay apart for every eye and in grey.
    styles = zip(("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"), "osD^vPX", strict=True)
    for method, (colour, marker) in zip(dict.fromkeys(row.method for row in sweep), styles, strict=False):
        points = [(r.shape.words, r.step) for r in sweep if r.method == method and r.step is not None]
        axes.plot(*zip(*points, strict=True), label=method, color=colour, marker=marker, linewidth=1.5, markersize=5)
    floor = sorted({(row.shape.words, row.floor) for row in sweep if row.floor is not None})
    axes.plot(*zip(*floor, strict=True), label="floor", color="#888888", linestyle="--")
    axes.set(xscale="log", yscale="log", xlabel="classes V", ylabel="forward + backward, ms")
    axes.set_xscale("log", base=2)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)
