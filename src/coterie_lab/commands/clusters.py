"""The command `coterie clusters`: the clusters of a trained model, to read."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from coterie_lab.commands.language import AsJson, RunFolder

if TYPE_CHECKING:
    from coterie_lab.tasks.language.clusters import Cluster


def clusters(
    run: RunFolder,
    words: Annotated[list[str] | None, Argument(metavar="[WORD]...", help="words whose company to show")] = None,
    n: Annotated[int, Option("--n", min=1, help="clusters to show when no word is given")] = 8,
    length: Annotated[int, Option(min=1, help="words to show of a cluster")] = 12,
    everything: Annotated[bool, Option("--all", help="all clusters with all their words")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the clusters that a trained model has found, or the company of a word."""
    from coterie_lab.tasks.language import clusters as finder
    from coterie_lab.tasks.language.trained import Trained

    trained = Trained.open(run, "cpu")
    if words:
        companies = [finder.company(trained, word, length) for word in words]
        if as_json:
            typer.echo(json.dumps([asdict(one) for one in companies], indent=1, ensure_ascii=False))
            return
        for one in companies:
            typer.echo(f"{one.word}: cluster {one.cluster.number}, {one.cluster.size} words: {_words(one.cluster)}")
            typer.echo(f"  nearest in it: {' '.join(one.neighbours)}")
            for other in one.next_best:
                typer.echo(f"  next best: cluster {other.number}: {_words(other)}")
        return
    found = finder.clusters(trained) if everything else finder.table(trained, n, length)
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=1, ensure_ascii=False))
        return
    for cluster in found:
        typer.echo(f"{cluster.number:>5}  {cluster.share:6.2%}  {_words(cluster)}")


def _words(cluster: "Cluster") -> str:
    return " ".join(cluster.words)
