"""The command `coterie serve`: what it takes and prints."""

import socket
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

CONNECTIONS = 256  # at once; more are told to come back


def serve(
    run: Annotated[Path, Argument(metavar="RUN", help="a run's folder")],
    host: Annotated[str, Option(help="where to listen; 0.0.0.0: to everyone who can reach this machine")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="0: any that is free")] = 8000,
    device: Annotated[str, Option(help="auto, cpu or cuda")] = "auto",
) -> None:
    """Serve a run's page: type a text and see what the model expects next, or a sentence and see its title found.

    Ctrl-C ends it.
    """
    try:
        import uvicorn

        from coterie_lab.serve.app import LOCAL, application
    except ImportError as error:
        raise ImportError("the live page needs more packages: pip install 'coterie-softmax[lab]'") from error

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
    """A socket there, or a sentence why not."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=CONNECTIONS)
    except OSError as error:
        raise OSError(
            f"cannot listen on {host}, port {port} ({error.strerror}): choose another --port or --host"
        ) from error
