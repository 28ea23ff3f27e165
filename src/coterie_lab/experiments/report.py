"""Shared by the reports of all experiments: statistics over seeds, tables, and their origin.

A report is a dictionary of plain data, written as report.json; report.md is the same as Markdown.
"""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from coterie_lab.experiments.comparison import Row
from coterie_lab.training.environment import describe
from coterie_lab.training.logs import read_journal
from coterie_lab.training.moves import RANDOM
from coterie_lab.training.run import Run, read_json, write_json, write_whole

Data = dict[str, Any]


def origin(rows: Iterable[Row[Any]]) -> Data:
    """The environments of the runs, without repetition, and that of the report."""
    places: list[Data] = []
    for path in (path for row in rows for path in row.paths):
        for started in read_journal(Run(path).environments):
            place = {key: started[key] for key in ("versions", "cuda", "hardware", "git")}
            if place not in places:
                places.append(place)
    return {"environments": places, "environment": describe()}


def write(out: Path, report: Data, markdown: list[str]) -> None:
    """Writes report.json and report.md, which ends with the report's command and the environments of its runs."""
    made = report["environment"]
    lines = [*markdown, *section("How it was made", f"`{made['command']}`, {made['date']}.", "")]
    for place in report["environments"]:
        hardware, versions, git = place["hardware"], place["versions"], place["git"]
        machine = ", ".join(hardware["gpus"]) or f"{hardware['cpu']}, {hardware['threads']} thread(s)"
        commit = git["commit"][:12] + ("+" if git["changed"] else "") if git else "unknown"
        named = ", ".join(f"{name} {version}" for name, version in versions.items())
        lines.append(f"- {machine}; {named}; CUDA {place['cuda'] or 'none'}; commit {commit}")
    write_json(out / "report.json", report)
    write_whole(out / "report.md", "\n".join(lines) + "\n")


def results(row: Row[Any]) -> list[Data]:
    """The result of each run."""
    return [read_json(Run(path).result) for path in row.paths]


def label(row: Row[Any]) -> str:
    """What a row is called in the tables; it says so if its clusters are still random."""
    random = any(result.get("random_clusters") for result in results(row))
    return f"{row.variant.label} (clusters {RANDOM})" if random else str(row.variant.label)


def records(path: Path, event: str) -> list[Data]:
    """The log records of one event of a run: "built", "train" or "evaluate"."""
    return [record for record in read_journal(Run(path).log) if record["event"] == event]


def spread(values: list[float], digits: int = 2) -> str:
    """The mean, and with several seeds ± their standard deviation."""
    if not values:
        return ""
    mean = f"{statistics.mean(values):,.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def minutes(row: Data) -> str:
    """The minutes of training."""
    return spread([seconds / 60 for seconds in row["seconds"]])


def find(report: Data, *names: str) -> Data | None:
    """The first of these variants that the report has."""
    return next((row for name in names for row in report["rows"] if row["name"] == name), None)


def section(title: str, *lines: str) -> list[str]:
    """A heading and its content."""
    return ["", f"## {title}", "", *lines]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown: the first column to the left, figures to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]
