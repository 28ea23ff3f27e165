"""The commands that show trained models: `coterie clusters`, `coterie report` and `coterie serve`."""

import json
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from coterie_lab.commands.language import AsJson, OnDevice, RunFolder
from coterie_lab.needed import needed_for

CONNECTIONS = 256  # at once; more are told to come back


def clusters(
    run: RunFolder,
    words: Annotated[list[str] | None, Argument(metavar="WORD", help="words whose company to show")] = None,
    n: Annotated[int, Option("--n", min=1, help="clusters to show when no word is given")] = 8,
    length: Annotated[int, Option(min=1, help="words to show of a cluster")] = 12,
    everything: Annotated[bool, Option("--all", help="show all clusters with all their words")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the clusters that a trained model has found and words that stand alone, or a word's cluster with its nearest
    words."""
    from coterie_lab.tasks.language import clusters as finder
    from coterie_lab.tasks.language.trained import Trained
    from coterie_lab.training.moves import RANDOM

    trained = Trained.open(run, "cpu")
    companies = [finder.company(trained, word, length) for word in words or ()]
    found = [] if words else finder.clusters(trained) if everything else finder.table(trained, n, length)
    alone = None if words else finder.alone(trained, None if everything else length)
    if trained.organized.partition.random:
        typer.echo(f"the clusters of {run} are {RANDOM}", err=as_json)
    if as_json:
        everyone: list[Any] = [*companies, *([alone] if alone else []), *found]
        typer.echo(json.dumps([asdict(one) for one in everyone], indent=1, ensure_ascii=False))
        return
    for one in companies:
        cluster = one.cluster
        if cluster is None:
            typer.echo(f"{one.word}: stands alone, in no cluster, because it is so frequent")
            continue
        typer.echo(f"{one.word}: cluster {cluster.number}, {cluster.size} words: {' '.join(cluster.words)}")
        typer.echo(f"  nearest in it: {' '.join(one.neighbours)}")
        for other in one.next_best:
            typer.echo(f"  next best: cluster {other.number}: {' '.join(other.words)}")
    if alone:
        typer.echo(f"alone  {alone.share:6.2%}  {' '.join(alone.words)}")
    for cluster in found:
        typer.echo(f"{cluster.number:>5}  {cluster.share:6.2%}  {' '.join(cluster.words)}")


def report(
    runs: Annotated[list[Path], Argument(metavar="RUN", help="folders of runs, compared if there are several")],
    out: Annotated[Path, Option(metavar="FILE", help="the page")] = Path("report.html"),
    figures: Annotated[Path | None, Option(metavar="DIR", help="write figures too, as PNG and SVG")] = None,
) -> None:
    """Write one page about runs, to open offline: figures, curves and an explorer of the clusters."""
    from coterie_lab.explorer.collect import collect
    from coterie_lab.explorer.page import build
    from coterie_lab.training.run import write_whole

    contents = collect(runs)
    page = build(contents)
    if figures is not None:
        from coterie_lab.explorer.figures import figures as draw

        typer.echo(f"{len(draw(contents, figures))} figures in {figures}")
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, page)
    typer.echo(f"open {out.resolve().as_uri()}")


def serve(
    run: Annotated[Path, Argument(metavar="RUN", help="a run's folder, from `train`")],
    host: Annotated[str, Option(help="where to listen; 0.0.0.0: to everyone who can reach this machine")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="0: any that is free")] = 8000,
    device: OnDevice = "auto",
) -> None:
    """Serve a run's page: type a text and see what the model expects next, or a sentence and see its title found.

    Ctrl-C ends it.
    """
    with needed_for("the live page"):
        import uvicorn

        from coterie_lab.serve.app import LOCAL, application

    host = host.strip("[]")
    near = host in LOCAL or f"[{host}]" in LOCAL
    app = application(run, device, LOCAL if near else ("*",))  # type: ignore[arg-type]
    listening = listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    typer.echo(f"http://{shown}:{listening.getsockname()[1]}  (Ctrl-C ends it)")
    config = uvicorn.Config(
        app, log_level="warning", server_header=False, limit_concurrency=CONNECTIONS, timeout_keep_alive=5,
        timeout_graceful_shutdown=5,
    )  # fmt: skip
    try:
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        typer.echo("stopped")


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; raises with the reason if there can be none."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=CONNECTIONS)
    except OSError as error:
        raise OSError(
            f"cannot listen on {host}, port {port} ({error.strerror}): choose another --port or --host"
        ) from error
