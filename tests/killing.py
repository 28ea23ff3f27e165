"""Runs that are killed at any moment, or stopped by Ctrl-C, and what must not show it."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from itertools import count

import torch

from coterie_lab.training import checkpoint
from coterie_lab.training.logs import read_journal

PROGRAM = """
import json, sys
from pathlib import Path
from {train.__module__} import train
from {data.__module__} import {data.__name__} as Data
from {settings.__module__} import Settings
train(Data.open(sys.argv[1]), Path(sys.argv[2]), Settings(**json.loads(sys.argv[3])), resume=True)
"""


def killed(train, data, out, settings, kills, checkpoint_every):
    """Trains in a process, kills it up to `kills` times soon after a checkpoint, resumes to the end; the kills."""
    program = PROGRAM.format(train=train, data=type(data), settings=type(settings))
    told_to = json.dumps({**settings.to_dict(), "checkpoint_every": checkpoint_every})
    luck = random.Random(0)
    for life in range(20):
        before = _written(out)
        process = subprocess.Popen([sys.executable, "-c", program, str(data.path), str(out), told_to])
        while life < kills and process.poll() is None:
            if _written(out) > before:  # only a life that got further than the last one is worth ending
                time.sleep(luck.random() * 4 * checkpoint_every)
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.002)
        code = process.wait(timeout=60)
        if code == 0:
            return life
        assert code == -signal.SIGKILL
    raise AssertionError("it never came to its end")


@contextmanager
def ctrl_c(task, at):
    """Presses Ctrl-C when tasks of this class are asked for a batch, the time that `at` counts from 0."""
    usual, calls = task.batch, count()

    def batch(self, step):
        if next(calls) == at:
            os.kill(os.getpid(), signal.SIGINT)
        return usual(self, step)

    task.batch = batch
    try:
        yield
    finally:
        task.batch = usual


def assert_same(out, whole):
    """Neither the journals nor the model tell the two apart."""
    assert _told(out) == _told(whole)
    assert (out / "moves.jsonl").read_bytes() == (whole / "moves.jsonl").read_bytes()
    ours, theirs = (checkpoint.load(path / "checkpoint.pt")["model"] for path in (out, whole))
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name


def _written(out):
    file = out / "checkpoint.pt"
    return file.stat().st_mtime_ns if file.exists() else 0


def _told(path):
    """What the journals hold that does not depend on the clock."""
    timed = ("seconds", "words_per_second")
    return [
        {key: value for key, value in record.items() if key not in timed}
        for name in ("log.jsonl", "reorganizations.jsonl")
        for record in read_journal(path / name)
    ]
