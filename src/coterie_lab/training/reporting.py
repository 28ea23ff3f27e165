"""What the reports of all experiments share: figures over seeds, and how it was made."""

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from coterie_lab.training.logs import read_journal
from coterie_lab.training.run import Run


def spread(values: list[float], digits: int = 2) -> str:
    """The mean, and with several seeds ± their standard deviation."""
    if not values:
        return ""
    mean = f"{statistics.mean(values):,.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def environments(runs: Iterable[Path]) -> list[dict[str, Any]]:
    """Where runs were made, each place once."""
    found: list[dict[str, Any]] = []
    for path in runs:
        for started in read_journal(Run(path).environments):
            place = {key: started[key] for key in ("versions", "cuda", "hardware", "git")}
            if place not in found:
                found.append(place)
    return found


def how_it_was_made(environment: dict[str, Any], places: list[dict[str, Any]]) -> list[str]:
    """The last section of a report, in Markdown: its own command and date, and the places of its runs."""
    lines = ["", "## How it was made", "", f"`{environment['command']}`, {environment['date']}.", ""]
    for place in places:
        hardware, versions = place["hardware"], place["versions"]
        machine = ", ".join(hardware["gpus"]) or f"{hardware['cpu']}, {hardware['threads']} thread(s)"
        commit = place["git"]["commit"][:12] + ("+" if place["git"]["changed"] else "") if place["git"] else "unknown"
        named = ", ".join(f"{name} {version}" for name, version in versions.items())
        lines.append(f"- {machine}; {named}; CUDA {place['cuda'] or 'none'}; commit {commit}")
    return lines
