"""Two processes: the same losses as one, one memory at each reorganization, and no going on in disagreement."""

import json
import re
import subprocess
import sys
import traceback
from contextlib import nullcontext
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from coterie import SelfOrganizedSoftmax
from coterie_lab.data.corpus import Corpus
from coterie_lab.tasks.language.settings import from_preset
from coterie_lab.tasks.language.train import LanguageTask, train
from coterie_lab.training import checkpoint
from coterie_lab.training.distributed import SharedHead, World, check_same, leave
from coterie_lab.training.logs import Journal, read_journal
from tests.corpora import SMALL, small
from tests.killing import ctrl_c

STILL = {**SMALL, "dropout": 0.0}  # processes drop out different units


def losses(path):
    return [record["loss"] for record in read_journal(path / "log.jsonl") if record["event"] == "train"]


@pytest.fixture(scope="module")
def in_two_processes(tmp_path_factory):
    """Runs work(world, *arguments) in two gloo processes that wait for it; a failure in either fails here."""
    context = mp.get_context("spawn")
    store, answers = tmp_path_factory.mktemp("group") / "store", context.Queue()
    queues = [context.Queue() for _ in range(2)]
    ours = [context.Process(target=_work, args=(rank, store, jobs, answers)) for rank, jobs in enumerate(queues)]
    for process in ours:
        process.start()

    def run(work, *arguments):
        for jobs in queues:
            jobs.put((work, arguments))
        failures = "\n".join(filter(None, (answers.get(timeout=120) for _ in queues)))
        assert not failures, failures

    yield run
    for process, jobs in zip(ours, queues, strict=True):
        jobs.put(None)
        process.join()


def _work(rank, store, jobs, answers):
    torch.set_num_threads(1)
    # One that waits in vain fails before long.
    patience = timedelta(seconds=40)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=patience)
    world = World(rank, 2, rank)
    for work, arguments in iter(jobs.get, None):
        try:
            work(world, *arguments)
            dist.barrier()
            answers.put(None)
        except Exception:
            answers.put(traceback.format_exc())
    leave(world)


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
    assert two == pytest.approx(one, rel=1e-4)
    first, second = (read_journal(tmp_path / name / "reorganizations.jsonl") for name in ("one", "two"))
    assert len(first) > 3
    assert second == first


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
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    first, second = (read_journal(tmp_path / name / "reorganizations.jsonl") for name in ("one", "two"))
    assert [move["step"] for move in first] == [4, 8, 12, 16, 20]
    assert second == first


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


def test_every_process_remembers_the_tokens_of_all(in_two_processes):
    in_two_processes(_remember)


def _remember(world):
    torch.manual_seed(0)
    hidden, target = torch.randn(3, 2, 5, 3), torch.tensor([[0, 0, 1, 3, 0], [1, -100, 1, 3, 2]])
    for counts, statistic in (([9, 4, 1, 7], "mean_hidden"), (None, "mean_hidden"), ([9, 4, 1, 7], "table")):
        alone, ours = (SelfOrganizedSoftmax(3, 4, counts, reorganize_every=3, statistic=statistic) for _ in range(2))
        ours.load_state_dict(alone.state_dict())
        shared = SharedHead(ours, world)
        for step in hidden:
            alone(step.reshape(10, 3), target.reshape(10))
            ours(step[world.rank], target[world.rank])
            assert ours.tally.targets() == alone.tally.targets()  # by which the head decides when to reorganise
            expected, moved = alone.step(), shared.step()
        assert moved == expected
        assert moved is not None
        torch.testing.assert_close(ours.state_dict(), alone.state_dict())
        # A batch that one process cannot use is left out by all.
        before = ours.statistic.total.clone()
        with pytest.warns(UserWarning, match="left out") if world.rank else nullcontext():
            ours(hidden[0, world.rank] * (float("nan") if world.rank else 1), target[world.rank])
            ours.step()
        assert torch.equal(ours.statistic.total, before)
        assert ours.tally.targets() == 0


def test_processes_that_disagree_stop(in_two_processes):
    in_two_processes(_disagree)


def _disagree(world):
    check_same(torch.arange(5), world)
    with pytest.raises(ValueError, match=r"disagree on the clusters .process 0: \w+, process 1: \w+"):
        check_same(torch.arange(5) + (world.rank == 1), world)


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
