"""Perplexity against the time spent on training: which head is the first to get somewhere."""

import math
from dataclasses import dataclass
from pathlib import Path

from coterie_lab.training.logs import read_journal
from coterie_lab.training.run import Run


@dataclass(frozen=True)
class Pace:
    """One run, at each of its evaluations; the time is that of building the model, clusters that are made beforehand
    among it, and of its updates."""

    label: str
    seconds: list[float]
    perplexity: list[float]
    building: float  # seconds, part of each of those above


def pace(label: str, path: Path) -> Pace:
    """From what a run wrote."""
    log = read_journal(Run(path).log)
    building = sum(record["seconds"] for record in log if record["event"] == "built")  # older runs did not note it
    seen = [record for record in log if record["event"] == "evaluate"]
    seconds = [building + record["seconds"] for record in seen]
    return Pace(label, seconds, [record["perplexity"] for record in seen], building)


def draw(paces: list[Pace], path: Path) -> None:
    """Writes the plot as PNG, up to three times the best perplexity; without matplotlib there is none, and its data is
    in the report all the same."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")  # no window
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(figsize=(8, 5))
    colours = pyplot.get_cmap("tab20").colors  # type: ignore[attr-defined]
    for number, found in enumerate(paces):
        ours = found.label == "self-organized"
        axes.plot(
            found.seconds, found.perplexity, label=found.label, marker="o", markersize=3,
            color="black" if ours else colours[number % len(colours)], linewidth=2.5 if ours else 1.2,
        )  # fmt: skip
    for scale, axis, ticks in (
        (axes.set_xscale, axes.xaxis, (1, 2, 3, 5)), (axes.set_yscale, axes.yaxis, (1, 1.2, 1.4, 1.6, 2, 2.5, 3, 4, 6))
    ):  # fmt: skip
        scale("log")
        axis.set_major_locator(ticker.LogLocator(subs=ticks))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(ticker.NullLocator())
    if reached := [last for found in paces for last in found.perplexity[-1:] if math.isfinite(last)]:
        axes.set_ylim(top=3 * min(reached))
    axes.set_xlabel("seconds of training, with making clusters beforehand")
    axes.set_ylabel("perplexity on the development text")
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1))
    figure.savefig(path, dpi=150, bbox_inches="tight")
    pyplot.close(figure)
