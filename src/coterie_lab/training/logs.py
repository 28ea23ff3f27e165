"""How a run reports its progress: a line of JSON per measurement, TensorBoard, and a bar in the terminal."""

import json
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from coterie_lab.training.run import written


class Journal:
    """A file of JSON lines that can be truncated to its length at a checkpoint."""

    def __init__(self, path: Path, keep: int = 0) -> None:
        """`keep`: the number of bytes to keep; the rest is truncated."""
        held = path.stat().st_size if path.exists() else 0
        if held < keep:
            raise ValueError(
                f"{path} has lost lines: it holds {held} bytes, the checkpoint expects {keep}; put back the file that "
                "was there, or start again with --force"
            )
        self.path = path
        self.file = path.open("a", encoding="utf-8")
        self.file.truncate(keep)

    def write(self, record: dict[str, Any]) -> None:
        """Adds a line."""
        with written(self.path):
            self.file.write(json.dumps(record) + "\n")
            self.file.flush()

    def position(self) -> int:
        """Syncs the file to the disk and returns its length in bytes."""
        with written(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())
        return os.fstat(self.file.fileno()).st_size

    def close(self) -> None:
        with suppress(OSError):  # a failed write was reported already
            self.file.close()


def read_journal(path: Path) -> list[dict[str, Any]]:
    """All lines of a journal; [] if there is none. It leaves out an incomplete last line, which is being written."""
    if not path.exists():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    except ValueError as error:
        raise ValueError(f"{path} is damaged: it does not hold a line of JSON for every measurement") from error


class Board:
    """Writes TensorBoard's curves if it is installed; a failure to write does not stop the run."""

    def __init__(self, folder: Path, step: int) -> None:
        self.writer: Any = None
        self.before = threading.excepthook
        with suppress(ImportError, OSError):
            from torch.utils.tensorboard import SummaryWriter

            threading.excepthook = self._thread_failed
            self.writer = SummaryWriter(str(folder), purge_step=step + 1)

    def write(self, name: str, record: dict[str, Any]) -> None:
        """Writes every number of a record, under `name`."""
        if self.writer is not None:
            try:
                for key, value in record.items():
                    if isinstance(value, int | float) and key != "step":
                        self.writer.add_scalar(f"{name}/{key}", value, record["step"])
            except OSError:  # raised again from its thread
                self.writer = None

    def close(self) -> None:
        if self.writer is not None:
            with suppress(OSError):
                self.writer.close()
        threading.excepthook = self.before

    def _thread_failed(self, failure: threading.ExceptHookArgs) -> None:
        """Ignores a full disk in TensorBoard's thread: the run's own files report it."""
        its_own = type(failure.thread).__module__.startswith("tensorboard.")
        if not (its_own and isinstance(failure.exc_value, OSError)):
            self.before(failure)


class Listening(Console):
    """Standard error, ignoring a reader that has gone away."""

    def __init__(self) -> None:
        super().__init__(stderr=True)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


class Bar:
    """A progress bar with perplexity, words per second and time left; it shows nothing without a console."""

    def __init__(self, console: Console | None, name: str, total: int, done: int = 0) -> None:
        self.console = console or Console(quiet=True)
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[how]}"),
            console=self.console, disable=console is None,
        )  # fmt: skip
        self.task = self.progress.add_task(name, total=total, completed=done, how="")

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def advance(self, step: int, perplexity: float, rate: float) -> None:
        """Updates the bar."""
        told = f"{perplexity:,.1f}" if perplexity < 1e7 else f"{perplexity:.3g}"
        self.progress.update(self.task, completed=step, how=f"perplexity {told} · {rate:,.0f} words/s")

    def say(self, message: str) -> None:
        """Prints a line above the bar."""
        self.console.print(message, markup=False, highlight=False, soft_wrap=True)
