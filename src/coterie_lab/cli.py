"""The command line `coterie`; every error that its user can cause is one line, never a traceback."""

import sys
import warnings
from typing import Annotated

try:
    import typer
except ImportError:  # the layer itself needs none of them
    sys.exit("coterie: the command line needs more packages: pip install 'coterie-softmax[lab]'")

import coterie
from coterie_lab.commands.comparisons import bench, demo, reproduce
from coterie_lab.commands.language import lm
from coterie_lab.commands.summarization import summarize
from coterie_lab.commands.trained import clusters, report, serve

# What is imported above loads no torch, so that help and completion answer at once. A command imports its work itself.
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"coterie {coterie.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train language models and summarizers whose softmax over a large vocabulary organises its words into clusters.

    Start with `coterie demo`: in a few minutes on any machine, it trains a small model with and without the layer.
    """


app.command()(demo)
app.add_typer(lm, name="lm")
app.add_typer(summarize, name="summarize")
for panel, commands in {"Trained models": (clusters, report, serve), "Comparisons": (bench, reproduce)}.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)


def main() -> None:
    """Runs the command; errors and warnings are one line."""
    warnings.formatwarning = lambda message, *where: f"coterie: {message}\n"
    try:
        app()
    except KeyboardInterrupt:
        sys.exit("\ncoterie: interrupted")
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"coterie: {error}")
    except (MemoryError, RuntimeError) as error:
        too_large = ("can't allocate memory", "out of memory", "Storage size calculation overflowed")
        if not isinstance(error, MemoryError) and not any(words in str(error) for words in too_large):
            raise
        sys.exit(f"coterie: that takes more memory than there is; make the model or the batch smaller ({error})")
