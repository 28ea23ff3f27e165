"""A run's folder: everything needed to resume it, to use its model, and to repeat it."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from coterie_lab.training.environment import describe

FORMAT = "coterie-run"
VERSION = 3
PARTITION = "partition.json"


class Run:
    """The folder and the names in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.environments = path / "environment.jsonl"  # a line per start of the run
        self.log = path / "log.jsonl"
        self.reorganizations = path / "reorganizations.jsonl"
        self.moves = path / "moves.jsonl"  # the moves of each of them, compressed
        self.checkpoint = path / "checkpoint.pt"  # to resume from
        self.best = path / "model.pt"  # the model to keep
        self.result = path / "result.json"  # exists once the run is finished
        self.partition = path / PARTITION  # the clusters it was given
        self.clusters = path / "clusters.json"  # those it has learned, for others

    @classmethod
    def create(cls, path: Path, kind: str, content: dict[str, Any], force: bool) -> "Run":
        """Creates a folder with its configuration; `force`: replaces an existing run."""
        run = cls(path)
        # Files with this suffix were never completed.
        if path.exists() and (not path.is_dir() or any(found.suffix != ".new" for found in path.iterdir())):
            if not run.config.is_file():
                raise ValueError(f"{path} is there and is not a run: choose another name for --out")
            if not force:
                raise ValueError(f"{path} holds a run: resume it (--resume) or replace it (--force)")
            for old in vars(run).values():
                if old != path:
                    old.unlink(missing_ok=True)
            for event in path.glob("tensorboard/events.out.*"):
                event.unlink()
        path.mkdir(parents=True, exist_ok=True)
        write_json(run.config, {"format": FORMAT, "version": VERSION, "kind": kind, **content})
        return run

    @classmethod
    def open(cls, path: Path, kind: str) -> tuple["Run", dict[str, Any]]:
        """Opens an existing run and reads its configuration."""
        run = cls(path)
        if not run.config.is_file():
            raise ValueError(f"{path} is not a run: there is no {run.config.name} in it")
        content = read_json(run.config)
        if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("kind") != kind:
            raise ValueError(f'{run.config} is not of a run of kind "{kind}"')
        if content.get("version") != VERSION:
            raise ValueError(
                f"{path} is a run of version {content.get('version')}, this program reads version {VERSION}: use the "
                "program that made it, or start again with --force"
            )
        return run, content

    def started(self) -> None:
        """Records the environment in which the run was started or resumed."""
        with written(self.environments), self.environments.open("a") as file:
            file.write(json.dumps(describe(), ensure_ascii=False) + "\n")


def write_json(path: Path, content: Any) -> None:
    """Writes JSON atomically."""
    write_whole(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Writes a file atomically."""
    with written(path), replacing(path) as fresh:
        fresh.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path to write to, and renames that file to `path` if there was no error."""
    fresh = path.with_name(path.name + ".new")
    try:
        yield fresh
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Turns an error of writing into one that names the file and says what to do."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"{path} could not be written ({error.strerror or error}): free some space, or see that it may be written, "
            "and start the command again (a training run with --resume)"
        ) from error


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Locks a folder, so that only one process at a time trains into it."""
    try:
        import fcntl
    except ImportError:  # not every system has such locks
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # nor every file system
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"another process is training into {folder}: wait for it, stop it, or choose another --out"
                ) from None
        yield
    finally:
        os.close(handle)


def read_json(path: Path) -> Any:
    """Reads JSON; raises a one-line error if the file is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is damaged: it is not JSON ({error})") from error
