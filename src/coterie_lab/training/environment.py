"""The environment of a run: command, versions, hardware and commit, to reproduce it."""

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("coterie-softmax", "torch", "triton", "numpy", "cut_cross_entropy", "liger_kernel")


def describe() -> dict[str, Any]:
    """The command, the date, versions, hardware, and the state of the source tree."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "command": shlex.join([*_program(), *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **versions_of(*PACKAGES)},
        "cuda": torch.version.cuda,
        "hardware": {
            "gpus": gpus,
            "cpu": cpu_name(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "threads": torch.get_num_threads(),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "git": git_state(Path(__file__).resolve().parent),
    }


def _program() -> list[str]:
    """The command that started this program."""
    module = getattr(sys.modules["__main__"].__spec__, "name", "coterie").removesuffix(".__main__")
    return ["coterie"] if module in ("coterie", "coterie_lab", "coterie_lab.cli") else ["python", "-m", module]


def versions_of(*packages: str) -> dict[str, str]:
    """The versions of installed packages."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def cpu_name() -> str:
    """The processor's name, if the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def git_state(folder: Path) -> dict[str, Any] | None:
    """The commit of the source tree and whether it was changed since; None outside a checkout."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        commit = git("rev-parse", "HEAD")
        return {"commit": commit, "changed": bool(git("status", "--porcelain"))} if commit else None
    except (OSError, subprocess.SubprocessError):
        return None
