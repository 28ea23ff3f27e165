"""The course of a run: how its perplexity fell, and how one course compares with another."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from coterie_lab.experiments.report import Data, records
from coterie_lab.training.logs import read_journal
from coterie_lab.training.run import Run, read_json


@dataclass(frozen=True)
class Jump:
    """The perplexity before and directly after a reorganisation, and the share of the text that it moved."""

    update: int
    before: float
    after: float
    share_of_mass: float


@dataclass(frozen=True)
class Course:
    """The evaluations of a run: usual ones, and those directly after a reorganisation, its own or another run's."""

    updates: list[int]
    perplexity: list[float]
    seconds: list[float]  # of training up to there
    jumps: list[Jump] = field(default_factory=list)
    memory: int | None = None  # the most bytes of a GPU that its updates needed


def course(path: Path) -> Course:
    """Reads the logs of a finished run."""
    looks = {record["step"]: record for event in ("after", "aside", "evaluate") for record in records(path, event)}
    updates = sorted(looks)
    before, after = ({one["step"]: one for one in records(path, event)} for event in ("before", "after"))
    moved = {record["step"]: record["share_of_mass"] for record in read_journal(Run(path).reorganizations)}
    return Course(
        updates,
        [looks[update]["perplexity"] for update in updates],
        [looks[update]["seconds"] for update in updates],
        [Jump(n, before[n]["perplexity"], after[n]["perplexity"], moved[n]) for n in sorted(before)],
        read_json(Run(path).result)["peak_memory"],
    )


def ratios(one: Course, other: Course) -> Data:
    """How a course compares with another of the same seed: each figure is 1 if both are alike.

    `final` and `largest`, at `largest_at`, are the perplexity of one over that of the other, after the last update and
    over all `compared` updates at which both were evaluated. `seconds` and `memory` are those of the other over those
    of one: the seconds until each has the other's last perplexity, None if one never has it.
    """
    theirs = dict(zip(other.updates, other.perplexity, strict=True))
    both = [(mine / theirs[n], n) for n, mine in zip(one.updates, one.perplexity, strict=True) if n in theirs]
    largest, largest_at = max(both)
    reached = seconds_to(one, other.perplexity[-1])
    return {
        "final": one.perplexity[-1] / other.perplexity[-1],
        "largest": largest,
        "largest_at": largest_at,
        "compared": len(both),
        "seconds": None if reached is None else other.seconds[-1] / reached,
        "memory": other.memory / one.memory if one.memory and other.memory else None,
    }


def seconds_to(found: Course, perplexity: float) -> float | None:
    """The seconds of training until the perplexity has fallen to this; between two evaluations, its logarithm is taken
    to fall evenly. None: it never has."""
    last: tuple[float, float] | None = None
    for value, seconds in zip(found.perplexity, found.seconds, strict=True):
        if value <= perplexity:
            if last is None or value == last[0]:
                return seconds
            share = math.log(last[0] / perplexity) / math.log(last[0] / value)
            return last[1] + share * (seconds - last[1])
        last = value, seconds
    return None
