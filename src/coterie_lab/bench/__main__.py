"""Benchmarks for maintainers, each written to one JSON file: `python -m coterie_lab.bench NAME --help`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from coterie_lab.training.environment import describe
from coterie_lab.training.run import write_json

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Benchmarks for maintainers.")
Out = Annotated[Path, typer.Argument(metavar="OUT.json", help="the file to write")]
Data = Annotated[Path, typer.Argument(metavar="DATA", help="a folder that `coterie lm prepare` wrote")]


def write(out: Path, found: dict[str, Any]) -> None:
    """Writes what was found, and where."""
    write_json(out, {"environment": describe(), **found})
    typer.echo(f"written to {out}")


@app.command()
def search(out: Out, device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu") -> None:
    """topk and beams from 2^14 to 2^20 words, against the dense product; also a table, in OUT.md."""
    import torch

    from coterie_lab.bench import search

    found = search.measured(torch.device(device), typer.echo)
    write(out, found)
    out.with_suffix(".md").write_text(search.markdown(found["rows"]) + "\n", encoding="utf-8")


@app.command()
def reorganization(out: Out) -> None:
    """One reorganisation of a million words in a thousand clusters."""
    from coterie_lab.bench import clusters

    write(out, clusters.reorganization())


@app.command()
def beforehand(data: Data, out: Out) -> None:
    """Clusters of a text's words that are made before training: by k-means, and Brown's."""
    from coterie_lab.bench import clusters

    write(out, clusters.beforehand(data))


@app.command()
def training_step(data: Data, out: Out) -> None:
    """A whole update of the language model, head against head."""
    from coterie_lab.bench import training_step

    write(out, training_step.measured(data))


@app.command()
def explorer(out: Out) -> None:
    """The report's page with 100,000 words, in a real browser."""
    from coterie_lab.bench import page

    write(out, page.measured())


if __name__ == "__main__":
    app()
