"""The command line: thin, and never a traceback for something its user could have caused."""

import sys
from pathlib import Path

try:
    import typer
    from rich.console import Console
except ImportError:  # the layer itself needs neither
    sys.exit("coterie: the command line needs more packages: pip install 'coterie-softmax[lab]'")

from coterie_lab.commands.bench import bench
from coterie_lab.commands.language import clusters, lm, reproduce
from coterie_lab.commands.report import report
from coterie_lab.commands.serve import serve
from coterie_lab.commands.summarization import summarize

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)


@app.callback()
def _root() -> None:
    """An output layer whose words find their own company."""


@app.command()
def demo(
    epochs: int = typer.Option(3, min=1, help="passes over the generated text"),
    words: int = typer.Option(550_000, min=20_000, help="words of generated text to learn from"),
    seed: int = typer.Option(0, help="of the text, the parameters and the first clusters"),
    out: Path = typer.Option(Path("runs/demo.json"), help="where to write all figures"),
) -> None:
    """Trains a small language model with a full softmax and with the layer, on a language with known classes."""
    from coterie_lab.demo.run import Setting
    from coterie_lab.demo.show import show

    show(Console(), Setting(epochs=epochs, words=words, seed=seed), out)


app.add_typer(lm, name="lm")
app.add_typer(summarize, name="summarize")
app.command()(bench)
app.command()(clusters)
app.command()(reproduce)
app.command()(report)
app.command()(serve)


def main() -> None:
    """Runs the command; errors are one line."""
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


if __name__ == "__main__":
    main()
