"""A comparison of variants in the same trainer, with a run for each seed.

Finished runs are not repeated, and stopped runs are resumed, so a comparison can be killed and started again at any
time.
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
        """Its changes, over those given for all variants; head options are merged."""
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
        for row in rows:  # all variants with one seed, then the next: other load on the machine affects all alike
            say(console, f"{row.variant.label}, seed {seed}")
            if not train(row, seed, row.paths[at]).finished:
                return False
    return True


def say(console: Console | None, what: str) -> None:
    if console is not None:
        console.print(what, highlight=False)
