"""A comparison: variants trained in the same trainer, a run for each seed.

A run that is finished is not repeated, and one that was stopped is resumed: a command that compares can be killed and
repeated at will.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich.console import Console

from coterie_lab.training.loop import Progress


@dataclass(frozen=True)
class Variant:
    """One row of the tables."""

    label: str
    changes: dict[str, Any] = field(default_factory=dict)  # to the preset's settings

    def changed(self, given: dict[str, Any]) -> dict[str, Any]:
        """Its changes and what is given for all variants; options of the head are added to its own."""
        options = {**self.changes.get("head_options", {}), **given.get("head_options", {})}
        return {**self.changes, **given, "head_options": options}


AnyVariant = TypeVar("AnyVariant", bound=Variant)


@dataclass(frozen=True)
class Row(Generic[AnyVariant]):
    """A variant and its runs, one for each seed."""

    name: str
    variant: AnyVariant
    paths: list[Path]


def chosen(names: list[str], variants: Mapping[str, AnyVariant]) -> dict[str, AnyVariant]:
    """The variants of these names."""
    if strangers := [name for name in names if name not in variants]:
        raise ValueError(f"there is nothing called {strangers[0]!r} to compare; there are: {', '.join(variants)}")
    return {name: variants[name] for name in names}


def rows_of(variants: Mapping[str, AnyVariant], seeds: list[int], out: Path) -> list[Row[AnyVariant]]:
    """The rows of a comparison in a folder."""
    return [Row(name, one, [out / "runs" / f"{name}-{seed}" for seed in seeds]) for name, one in variants.items()]


def run_all(
    rows: list[Row[AnyVariant]],
    seeds: list[int],
    train: Callable[[Row[AnyVariant], int, Path], Progress],
    console: Console | None,
) -> bool:
    """Trains every variant with every seed; False if it was stopped."""
    for at, seed in enumerate(seeds):
        for row in rows:  # a seed of every variant before the next: what else the machine does meets all alike
            say(console, f"{row.variant.label}, seed {seed}")
            if not train(row, seed, row.paths[at]).finished:
                return False
    return True


def say(console: Console | None, what: str) -> None:
    if console is not None:
        console.print(what, highlight=False)
