"""Atomic checkpoints: a file is either complete or absent.

A checkpoint is written to a temporary file, synced to the disk, and renamed over the previous one: a run killed at any
moment leaves the last complete one. It is read with `weights_only`, which never runs code from a file.
"""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie_lab.training.run import replacing

FORMAT = "coterie-checkpoint"
VERSION = 1


def save(path: Path, content: dict[str, Any]) -> None:
    """Writes tensors and plain data, atomically."""
    try:
        with replacing(path) as fresh, fresh.open("wb") as file:
            torch.save({"format": FORMAT, "version": VERSION, **content}, file)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)
    except (OSError, RuntimeError) as error:  # torch reports a failed write as either
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
        kept = "the one before it is kept" if path.exists() else "there is none yet"
        raise OSError(
            f"the checkpoint {path} could not be written ({reason}); {kept}. Free some space and continue with --resume"
        ) from error


def load(path: Path) -> dict[str, Any]:
    """Reads a checkpoint onto the CPU; never runs code from it."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # unpicklers fail in many ways on a file that is not theirs
        raise ValueError(
            f"{path} cannot be read as a checkpoint: it is damaged, or not one of ours; start again with --force"
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f'{path} is not a checkpoint: it lacks "format": "{FORMAT}"')
    if content.get("version") != VERSION:
        raise ValueError(
            f"{path} is a checkpoint of version {content.get('version')}, this program reads version {VERSION}: use "
            "the program that wrote it, or start again with --force"
        )
    return content


def sync_folder(folder: Path) -> None:
    """Syncs a rename to the disk, if the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The states of the random generators."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    """Restores them. If the run is resumed on another kind of device, that device's generator is left unchanged."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
