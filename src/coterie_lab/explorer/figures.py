"""Figures for papers, as PNG and SVG, in colours for the colour-blind, and with dashes for grey print."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from coterie_lab.explorer import treemap
from coterie_lab.explorer.collect import Content, Curves
from coterie_lab.explorer.explorer import Organized, atlas
from coterie_lab.needed import needed_for
from coterie_lab.training.moves import RANDOM

# Okabe and Ito's colours, from dark to light, each with its own dashes.
STYLES = (("#0072B2", "-"), ("#D55E00", "--"), ("#009E73", "-."), ("#CC79A7", ":"), ("#56B4E9", (0, (5, 1, 1, 1))))
LONGEST = 24  # characters of a word on the map


def figures(contents: list[Content], folder: Path) -> list[Path]:
    """Writes Figure 1 and the map of each run, and a comparison of several; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for content in contents:
        name = content.name.replace("/", "-")
        if content.curves.evaluated or content.curves.reorganized:
            written += draw_curves(content.curves, folder / f"{name}-figure1")
        if content.organized is not None:
            written += draw_map(content.organized, folder / f"{name}-map")
    if len(contents) > 1:
        written += draw_comparison(contents, folder / "comparison")
    return written


def draw_curves(found: Curves, path: Path) -> list[Path]:
    """Draws the paper's Figure 1: perplexity and its two factors, and below how many words moved."""
    with _canvas() as pyplot:
        n_rows = 2 if found.reorganized else 1
        figure, axes = pyplot.subplots(n_rows, 1, sharex=True, squeeze=False, figsize=(7, 3 + 1.5 * n_rows))
        above = axes[0, 0]
        factors = {"of the cluster": found.cluster_perplexity, "inside the cluster": found.in_cluster_perplexity}
        for style, (label, values) in zip(STYLES, {"perplexity": found.perplexity, **factors}.items(), strict=False):
            if values:
                _line(above, found.evaluated, values, label, style)
        _scales(above)
        above.set_ylabel("on the development text")
        above.legend(ncols=3, loc="lower right", bbox_to_anchor=(1, 1))  # three curves leave no room inside
        if found.reorganized:
            below = axes[1, 0]
            _line(below, found.reorganized, found.share_of_words, "share of words moved", STYLES[0])
            _line(below, found.reorganized, found.share_of_mass, "their share of the text", STYLES[1])
            below.set_ylim(0, 1)
            below.legend()
        axes[-1, 0].set_xlabel("updates")
        return _save(figure, pyplot, path)


def draw_comparison(contents: list[Content], path: Path) -> list[Path]:
    """Draws the perplexities of several runs in one figure."""
    with _canvas() as pyplot:
        figure, axes = pyplot.subplots(figsize=(7, 4))
        for number, content in enumerate(contents):
            style = STYLES[number % len(STYLES)]
            _line(axes, content.curves.evaluated, content.curves.perplexity, content.name, style)
        _scales(axes)
        axes.set_xlabel("updates")
        axes.set_ylabel("perplexity on the development text")
        axes.legend()
        return _save(figure, pyplot, path)


def draw_map(model: Organized, path: Path, words: int = 3) -> list[Path]:
    """Draws a map of all clusters with their most typical words; areas are shares of the text in clusters, like ones
    together."""
    found = atlas(model)
    width, height = 12.0, 8.0
    boxes = treemap.rectangles(found.mass, found.places, width, height)
    with _canvas() as pyplot:
        from matplotlib.colors import hsv_to_rgb

        figure, axes = pyplot.subplots(figsize=(width, height))
        hue, strength = treemap.colours(found.places)
        # Pale colours, so that black words stay readable, in grey too.
        faces = hsv_to_rgb(np.stack((hue / 360, 0.04 + 0.2 * strength, np.full_like(hue, 0.98)), 1))
        for typical, (left, top, w, h), face in zip(found.typical, boxes, faces, strict=True):
            axes.add_patch(pyplot.Rectangle((left, top), w, h, facecolor=face, edgecolor="#555555", linewidth=0.4))
            size = min(10.0, 50 * h / words, 14 * w)
            if size < 3:
                continue
            lines = "\n".join(_short(model.words[word], int(w * 105 / size)) for word in typical[:words])
            axes.text(left + w / 2, top + h / 2, lines, fontsize=size, ha="center", va="center")
        axes.set_xlim(0, width)
        axes.set_ylim(height, 0)
        axes.set_axis_off()
        if model.head.partition.random:
            axes.set_title(f"These clusters are {RANDOM}")
        return _save(figure, pyplot, path)


def _short(word: str, most: int) -> str:
    most = max(3, min(most, LONGEST))
    return word if len(word) <= most else word[: most - 1] + "…"


def _line(axes: Any, x: list[int], y: list[float], label: str, style: tuple[str, Any]) -> None:
    colour, dashes = style
    axes.plot(x, y, label=label, color=colour, linestyle=dashes, marker="o" if len(x) < 3 else None)


def _scales(axes: Any) -> None:
    """Perplexities on a log scale, updates on a plain one, both in plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.0f}")


@contextmanager
def _canvas() -> Iterator[Any]:
    """pyplot without a window, and without warnings of glyphs that a font lacks."""
    with needed_for("drawing figures"):
        import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    style: dict[Any, Any] = {
        "svg.fonttype": "none", "svg.hashsalt": "coterie", "text.parse_math": False,
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25,
        "legend.frameon": False,
    }  # fmt: skip
    with pyplot.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        yield pyplot


def _save(figure: Any, pyplot: Any, path: Path) -> list[Path]:
    figure.tight_layout()
    paths = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")]
    for one in paths:
        figure.savefig(one, dpi=150, metadata={"Date": None} if one.suffix == ".svg" else None)
    pyplot.close(figure)
    return paths
