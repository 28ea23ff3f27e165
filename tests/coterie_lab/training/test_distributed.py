"""Two processes: the same losses as one, one memory at each reorganization, and no going on in disagreement."""

import json
import re
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch.distributed as dist

from coterie_lab.data.corpus import Corpus
from coterie_lab.tasks.language.settings import from_preset
from coterie_lab.tasks.language.train import LanguageTask, train
from coterie_lab.training import checkpoint
from coterie_lab.training.distributed import World
from coterie_lab.training.logs import Journal, read_journal
from tests.corpora import SMALL, small
from tests.killing import ctrl_c
from tests.processes import processes

STILL = {**SMALL, "dropout": 0.0}  # processes drop out different units


def losses(path):
    return [record["loss"] for record in read_journal(path / "log.jsonl") if record["event"] == "train"]


@pytest.fixture(scope="module")
def in_two_processes(tmp_path_factory):
    """Runs work(world, *arguments) in two gloo processes that wait for it; a failure in either fails here."""
    with processes(2, tmp_path_factory.mktemp("group")) as run:
        yield lambda work, *arguments: run(_in_world, work, *arguments)


def _in_world(rank, size, work, *arguments):
    work(World(rank, size, rank), *arguments)


def assert_as_one(folder, more_than):
    """Exactly as one process until the first reorganisation. What two have remembered apart and then merged is not
    quite what one has, which averages in another order, so a few words move elsewhere."""
    one, two = losses(folder / "one"), losses(folder / "two")
    first, second = (read_journal(folder / name / "reorganizations.jsonl") for name in ("one", "two"))
    at = [move["step"] for move in first]
    assert [move["step"] for move in second] == at
    assert len(at) > more_than
    assert two[: at[0]] == pytest.approx(one[: at[0]], rel=1e-4)
    assert two == pytest.approx(one, rel=0.02)


def test_torchrun_gives_the_losses_of_one_process(corpus, tmp_path):
    train(corpus, tmp_path / "one", small(dropout=0.0))
    options = [f"--{name.replace('_', '-')}={value}" for name, value in STILL.items() if name != "head_options"]
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "-m", "coterie_lab", "lm",
        "train", str(corpus.path), "--out", str(tmp_path / "two"), *options, "--head-option", "own_words=8",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(re.findall("perplexity .* after update", done.stdout)) == 1
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert len(one) == len(two) > 30
    assert_as_one(tmp_path, more_than=3)


HEADS = ("full", "adaptive", "hsm-huffman")
SAMPLED = ("importance", "nce")  # each process draws its own words


def test_heads_that_remember_nothing_are_the_same_to_rounding(in_two_processes, corpus, tmp_path):
    in_two_processes(_train, corpus.path, tmp_path)
    for head in HEADS:
        train(corpus, tmp_path / "one", small(dropout=0.0, head=head, head_options={}, epochs=1), force=True)
        assert losses(tmp_path / head) == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    for head in SAMPLED:
        assert len(losses(tmp_path / head)) == len(losses(tmp_path / "one"))
        assert losses(tmp_path / head)[-1] < losses(tmp_path / head)[0]


def _train(world, data, folder):
    for head in (*HEADS, *SAMPLED):
        quick = {"learning_rate": 0.02} if head in SAMPLED else {}
        settings = small(dropout=0.0, head=head, head_options={}, epochs=1, **quick)
        train(Corpus.open(data), folder / head, settings, world=world)


def test_two_processes_train_the_transformer_of_one(in_two_processes, corpus, tmp_path):
    in_two_processes(_train_transformer, corpus.path, tmp_path / "two")
    train(corpus, tmp_path / "one", _transformer())
    assert_as_one(tmp_path, more_than=4)


def _transformer():
    return from_preset(
        "best", "transformer", hidden=16, layers=2, attention_heads=4, sequences=8, length=7, updates=20, warmup=2,
        dropout=0.0, log_every=1, device="cpu", head_options={"reorganize_every": 4},
    )  # fmt: skip


def _train_transformer(world, data, out):
    train(Corpus.open(data), out, _transformer(), world=world)


def test_what_goes_wrong_in_the_first_process_is_told_by_all(in_two_processes, corpus, tmp_path):
    """None is left to wait for one that is gone."""
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/file").touch()
    in_two_processes(_refused, corpus.path, tmp_path)


def _refused(world, data, folder):
    with pytest.raises(ValueError, match="is there and is not a run"):
        train(Corpus.open(data), folder / "taken", small(), world=world)
    usual = Journal.write
    for name in ("log", "reorganizations"):
        if world.main:
            Journal.write = _none_for(name, usual)
        with pytest.raises((OSError, ValueError), match="No space left"):
            train(Corpus.open(data), folder / name, small(epochs=1), world=world)
        Journal.write = usual
    train(Corpus.open(data), folder / "whole", small(epochs=1), world=world)
    if world.main:
        (folder / "whole/log.jsonl").write_text("")
        (folder / "whole/result.json").unlink()
    dist.barrier()
    with pytest.raises(ValueError, match="has lost lines"):
        train(Corpus.open(data), folder / "whole", small(epochs=1), world=world, resume=True)
    sync = checkpoint.sync_folder
    if world.main:
        checkpoint.sync_folder = _no_room
    with pytest.raises((OSError, ValueError), match=r"the checkpoint .* could not be written"):
        train(Corpus.open(data), folder / "full", small(epochs=1), world=world)
    checkpoint.sync_folder = sync


def _none_for(name, usual):
    """A journal's `write` that has no room for the files of a name."""
    return lambda journal, record: _no_room(journal) if name in journal.path.name else usual(journal, record)


def _no_room(file):
    raise OSError(28, "No space left on device")


def test_two_processes_stop_together_and_go_on_to_the_last_bit(in_two_processes, corpus, tmp_path):
    in_two_processes(_stop_and_go_on, corpus.path, tmp_path)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    content = checkpoint.load(tmp_path / "cut/checkpoint.pt")
    assert len(content["ranks"]) == 2
    (tmp_path / "cut/result.json").unlink()
    with pytest.raises(ValueError, match=r"trained by 2 process.es., now there are 1"):
        train(corpus, tmp_path / "cut", small(), resume=True)


def _stop_and_go_on(world, data, folder):
    corpus = Corpus.open(data)
    train(corpus, folder / "whole", small(), world=world)
    with ctrl_c(LanguageTask, at=21) if world.rank == 1 else nullcontext():
        progress = train(corpus, folder / "cut", small(), world=world)
    assert (progress.step, progress.finished) == (22, False)
    assert train(corpus, folder / "cut", small(), resume=True, world=world).finished
    if world.main:
        assert json.loads((folder / "cut/result.json").read_text())["updates"] == len(losses(folder / "cut"))
