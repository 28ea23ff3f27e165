"""A run's folder: whose text it is of, one process at a time, and what is said when it cannot be written."""

import errno
import json
import math
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import torch

from coterie_lab.data.corpus import prepare
from coterie_lab.tasks.language.train import LanguageTask, data, train
from coterie_lab.tasks.language.trained import Trained
from coterie_lab.training import checkpoint, environment
from coterie_lab.training.logs import Board, Journal
from coterie_lab.training.run import Run, alone, write_whole
from tests.command_line import SMALL, coterie
from tests.corpora import small, tiny_corpus, tiny_text


@pytest.fixture
def run(corpus, tmp_path):
    train(corpus, tmp_path / "run", small(epochs=1))
    return tmp_path / "run"


# -- whose text -----------------------------------------------------------------------------------------------------


def renamed(folder):
    """A text with the sizes and counts of the other, of other words."""
    folder.mkdir()
    (folder / "text.txt").write_text(tiny_text().replace("a", "ä"))
    return prepare([folder / "text.txt"], folder / "data")


def test_another_text_of_the_same_size_is_refused_and_leaves_the_run_alone(corpus, run, tmp_path):
    other = renamed(tmp_path / "other")
    assert [len(other.train), len(other.dev), other.n_words] == [len(corpus.train), len(corpus.dev), corpus.n_words]
    words = (run / "vocabulary.json").read_bytes()
    with pytest.raises(ValueError, match="was trained on another text than"):
        train(other, run, small(epochs=1), resume=True)
    assert (run / "vocabulary.json").read_bytes() == words


def test_the_same_text_prepared_elsewhere_is_the_same(corpus, run, tmp_path):
    again = tiny_corpus(tmp_path)
    assert data(again).fingerprint == data(corpus).fingerprint
    assert train(again, run, small(epochs=1), resume=True).finished


def test_no_limit_and_never_are_settings(corpus, tmp_path):
    train(corpus, tmp_path / "run", small(epochs=1, clip=math.inf, checkpoint_every=math.inf))
    assert Trained.open(tmp_path / "run", "cpu").settings.clip == math.inf


def test_a_development_part_of_one_word_is_told_before_training(tmp_path):
    (tmp_path / "text.txt").write_text(tiny_text() + " x")
    corpus = prepare([tmp_path / "text.txt"], tmp_path / "data", dev_chars=1)
    with pytest.raises(ValueError, match=r"1 word.* for development, and two are the least"):
        train(corpus, tmp_path / "run", small())
    assert not (tmp_path / "run").exists()


# -- one process at a time ------------------------------------------------------------------------------------------


def test_a_second_process_is_refused_while_the_first_is_at_work(corpus, run):
    log = (run / "log.jsonl").read_bytes()
    program = (
        "import sys; from pathlib import Path; from coterie_lab.training.run import alone\n"
        "with alone(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        for options in ({"resume": True}, {"force": True}):
            with pytest.raises(ValueError, match="another process is training into"):
                train(corpus, run, small(epochs=1), **options)
        other.communicate()
    assert (run / "log.jsonl").read_bytes() == log
    assert train(corpus, run, small(epochs=1), resume=True).finished


def test_a_run_holds_its_folder_before_anything_is_written_and_while_it_trains(corpus, tmp_path, monkeypatch):
    out, seen = tmp_path / "new/run", []

    def held(usual):
        def call(*given):
            with pytest.raises(ValueError, match="another process"), alone(out):
                pass
            seen.append(sorted(path.name for path in out.iterdir()))
            return usual(*given)

        return call

    monkeypatch.setattr(Run, "create", held(Run.create))
    monkeypatch.setattr(checkpoint, "save", held(checkpoint.save))
    assert train(corpus, out, small(epochs=1)).finished
    assert seen[0] == []
    assert len(seen) > 1
    with alone(out):
        pass


# -- no room --------------------------------------------------------------------------------------------------------


class Full:
    """A file on a full disk."""

    def write(self, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self):
        self.write("")


def test_a_full_disk_is_told_with_the_file_and_what_to_do(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "log.jsonl")
    journal.file.close()
    journal.file = Full()
    with pytest.raises(OSError, match=r"log\.jsonl could not be written \(No space left.*--resume"):
        journal.write({"step": 1})
    journal.close()
    with pytest.raises(OSError, match=r"nowhere/report\.md could not be written \(No such file"):
        write_whole(tmp_path / "nowhere/report.md", "text")


def test_tensorboard_without_room_is_done_without(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    before = threading.excepthook
    board = Board(tmp_path, 0)

    def fail(kind=OSError):
        raise kind(errno.ENOSPC, "No space left on device")

    class Own(threading.Thread):
        __module__ = "tensorboard.summary"

    for thread, kind in ((Own, OSError), (Own, KeyError), (threading.Thread, BlockingIOError)):
        one = thread(target=fail, args=(kind,))
        one.start()
        one.join()
    assert [failure.exc_type for failure in told] == [KeyError, BlockingIOError]  # not its own full disk

    class Writer:
        def add_scalar(self, *given):
            fail()

        def close(self):
            fail()

    board.writer = Writer()
    board.write("train", {"step": 1, "loss": 2.0})
    assert board.writer is None
    board.write("train", {"step": 2, "loss": 2.0})
    board.writer = Writer()
    board.close()
    assert threading.excepthook is before


# -- going on -------------------------------------------------------------------------------------------------------


def test_a_run_that_is_not_there_begins_and_that_is_said(corpus, tmp_path):
    arguments = ("lm", "train", corpus.path, "--out", tmp_path / "run", "--resume", *SMALL)
    assert "there is no run at" in coterie(*arguments).stderr
    assert "there is no run at" not in coterie(*arguments).stderr


def test_a_preset_said_again_brings_back_no_defaults(corpus, tmp_path):
    arguments = ["lm", "train", corpus.path, "--out", tmp_path / "run", "--preset", "paper"]
    assert coterie(*arguments, *SMALL).exit_code == 0
    done = coterie(*arguments, "--resume")
    assert done.exit_code == 0, done.exception


def test_a_finished_run_is_left_as_it_is_without_its_checkpoint_too(corpus, run):
    (run / "checkpoint.pt").unlink()
    before = {path: path.stat().st_mtime_ns for path in run.iterdir() if path.name != "vocabulary.json"}
    progress = train(corpus, run, small(epochs=1), resume=True)
    assert progress.finished
    assert progress.best == json.loads((run / "result.json").read_text())["best"]
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_model_is_not_taken_for_a_checkpoint(corpus, run):
    (run / "result.json").unlink()
    (run / "model.pt").rename(run / "checkpoint.pt")
    with pytest.raises(ValueError, match="not a checkpoint to resume from"):
        train(corpus, run, small(epochs=1), resume=True)


def test_a_checkpoint_is_promised_only_where_there_is_one(corpus, tmp_path, monkeypatch):
    with monkeypatch.context() as changed:
        usual = LanguageTask.loss
        changed.setattr(LanguageTask, "loss", lambda self, *batch: usual(self, *batch) * float("nan"))
        with pytest.raises(ValueError, match=r"loss is nan at update 1: lower the learning rate or the clipping norm$"):
            train(corpus, tmp_path / "run", small())
    out = tmp_path / "other"
    train(corpus, out, small(epochs=1))
    Run(out).result.unlink()
    content = checkpoint.load(out / "checkpoint.pt")
    content["ranks"][0]["loss_sum"] = torch.tensor(float("nan"))
    content["progress"]["step"] -= 1
    checkpoint.save(
        out / "checkpoint.pt", {name: content[name] for name in content if name not in ("format", "version")}
    )
    with pytest.raises(ValueError, match=r"The last checkpoint is unharmed$"):
        train(corpus, out, small(epochs=1), resume=True)


# -- nobody listens -------------------------------------------------------------------------------------------------


def test_a_closed_pipe_does_not_end_the_work():
    program = (
        "from coterie_lab.training.logs import Listening\n"
        "console = Listening()\n"
        "for _ in range(20000): console.print('a line of some length')\n"
        "print('done')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as done:
        done.stderr.close()
        assert done.stdout.read() == "done\n"
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("module", "said"),
    [("coterie_lab.__main__", "coterie x"), ("coterie_lab.bench.search", "python -m coterie_lab.bench.search x")],
)
def test_a_record_names_the_program_that_made_it(monkeypatch, module, said):
    monkeypatch.setattr(sys, "argv", ["program", "x"])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name=module))
    assert environment.describe()["command"] == said
