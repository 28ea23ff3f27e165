"""Checkpoints: whole or not there, complete to the last bit, and never able to run code."""

import pickle
import resource
import signal

import pytest
import torch

from coterie_lab.tasks.language.train import train
from coterie_lab.tasks.language.trained import Trained
from coterie_lab.training import checkpoint
from coterie_lab.training.update import Update
from tests.corpora import small
from tests.killing import assert_same, killed


def test_a_run_killed_at_any_moment_goes_on_to_the_last_bit(corpus, tmp_path):
    settings = small(epochs=6, optimizer="adam", learning_rate=1e-3, layers=2)
    train(corpus, tmp_path / "whole", settings)
    assert killed(train, corpus, tmp_path / "killed", settings, kills=2, checkpoint_every=0.05) >= 1
    assert_same(tmp_path / "killed", tmp_path / "whole")


def test_the_checkpoint_is_complete(corpus, tmp_path):
    train(corpus, tmp_path / "run", small(epochs=1))
    content = checkpoint.load(tmp_path / "run/checkpoint.pt")
    needed = {"partition.cluster_of", "mean_hidden._extra_state", "counts", "_extra_state"}
    assert {f"head.{name}" for name in needed} <= content["model"].keys()
    assert content["optimizer"]["state"]
    own = content["ranks"][0]
    assert own["random"]["cpu"].numel()
    assert own["task"]["carried"][0].any()
    assert content["positions"]["log.jsonl"] == (tmp_path / "run/log.jsonl").stat().st_size


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path):
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, {"step": 1, "x": torch.zeros(10)})
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))  # as a disk with that much left
    try:
        with pytest.raises(OSError, match=r"the one before it is kept.*--resume") as error:
            checkpoint.save(path, {"step": 2, "x": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert "\n" not in str(error.value)
    assert checkpoint.load(path)["step"] == 1
    assert [found.name for found in tmp_path.iterdir()] == ["checkpoint.pt"]


class Evil:
    def __reduce__(self):
        return (print, ("code from a file has run",))


def test_reading_never_runs_code(tmp_path, capsys):
    path = tmp_path / "checkpoint.pt"
    torch.save({"format": checkpoint.FORMAT, "version": checkpoint.VERSION, "x": Evil()}, path)
    with pytest.raises(ValueError, match="damaged, or not one of ours"):
        checkpoint.load(path)
    path.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ValueError, match="damaged, or not one of ours"):
        checkpoint.load(path)
    assert "has run" not in capsys.readouterr().out


def test_what_is_not_a_checkpoint_is_refused_in_one_sentence(tmp_path):
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, {"x": torch.arange(1000)})
    whole = path.read_bytes()
    for wrong in (b"", b"text", whole[: len(whole) // 2]):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match="cannot be read as a checkpoint"):
            checkpoint.load(path)
    torch.save({"x": 1}, path)
    with pytest.raises(ValueError, match="is not a checkpoint"):
        checkpoint.load(path)
    torch.save({"format": checkpoint.FORMAT, "version": 99}, path)
    with pytest.raises(ValueError, match="version 99, this program reads version 1"):
        checkpoint.load(path)


def test_a_run_half_written_is_told_apart(corpus, tmp_path):
    out = tmp_path / "run"
    train(corpus, out, small(epochs=1))
    (out / "model.pt").rename(out / "gone.pt")
    with pytest.raises(ValueError, match=r"damaged: its model.pt is gone.*--force"):
        Trained.open(out)
    (out / "result.json").unlink()
    with pytest.raises(ValueError, match=r"holds no model yet.*--resume"):
        Trained.open(out)
    (out / "gone.pt").rename(out / "model.pt")
    words = (out / "vocabulary.json").read_text()
    (out / "vocabulary.json").write_text("{}")
    with pytest.raises(ValueError, match="settings, vocabulary and model do not fit together"):
        Trained.open(out)
    (out / "vocabulary.json").unlink()
    with pytest.raises(ValueError, match=r"damaged: its vocabulary.json is gone"):
        Trained.open(out)
    (out / "vocabulary.json").write_text(words)
    kept = (out / "model.pt").read_bytes()
    train(corpus, tmp_path / "other", small(epochs=1, head="full", head_options={}))
    (out / "model.pt").write_bytes((tmp_path / "other/model.pt").read_bytes())
    with pytest.raises(ValueError, match="do not fit together"):
        Trained.open(out)
    (out / "model.pt").write_bytes(kept)
    (out / "log.jsonl").write_text("")
    with pytest.raises(ValueError, match="has lost lines"):
        train(corpus, out, small(epochs=1), resume=True)
    (out / "config.json").write_text('{"format": "coterie-run"')
    with pytest.raises(ValueError, match="damaged: it is not JSON"):
        Trained.open(out)
    (out / "config.json").write_text('{"format": "coterie-run", "version": 7, "kind": "language model"}')
    with pytest.raises(ValueError, match="a run of version 7, this program reads version 3"):
        Trained.open(out)


@pytest.mark.parametrize("left", [(), ("config.json.new",), ("config.json",)])
def test_a_run_killed_before_it_had_begun_begins(corpus, tmp_path, left):
    train(corpus, tmp_path / "whole", small(epochs=1))
    out = tmp_path / "run"
    out.mkdir()
    for name in left:
        (out / name).write_text((tmp_path / "whole/config.json").read_text())
    train(corpus, out, small(epochs=1), resume=True)
    assert_same(out, tmp_path / "whole")
    assert Trained.open(out).words == corpus.words


def test_runs_are_not_overwritten_unasked(corpus, tmp_path):
    out = tmp_path / "run"
    train(corpus, out, small(epochs=1))
    log = (out / "log.jsonl").read_bytes()
    with pytest.raises(ValueError, match=r"holds a run: resume it .--resume. or replace it .--force."):
        train(corpus, out, small(epochs=1))
    with pytest.raises(ValueError, match="was started with hidden 16, not 8"):
        train(corpus, out, small(epochs=1, hidden=8), resume=True)
    assert (out / "log.jsonl").read_bytes() == log
    for name in ("partition.json", "clusters.json"):
        (out / name).write_text("of the old one")
    train(corpus, out, small(epochs=1, hidden=8), force=True)
    assert (out / "log.jsonl").read_bytes() != log
    assert not any((out / name).exists() for name in ("partition.json", "clusters.json"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not a run"):
        train(corpus, tmp_path / "other", small(), force=True)
    assert (tmp_path / "other/thesis.txt").read_text() == "mine"


def test_a_run_that_has_diverged_is_not_saved_over_the_last_good_checkpoint(corpus, tmp_path, monkeypatch):
    settings = small(checkpoint_every=0.0, log_every=1000, epochs=1)
    own = Update.__call__

    def diverge(self, *batch):
        own(self, *batch)
        self.seen = getattr(self, "seen", 0) + 1
        if self.seen == 5:
            self.loss_sum.fill_(float("nan"))

    monkeypatch.setattr(Update, "__call__", diverge)
    with pytest.raises(ValueError, match="the loss is nan at update 5"):
        train(corpus, tmp_path / "run", settings)
    assert checkpoint.load(tmp_path / "run/checkpoint.pt")["progress"]["step"] == 4
