"""The trainer: its data and settings, the loop's stops and logs, the update as a graph."""

import copy
import json
import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from coterie.clustering.prior import log_frequency
from coterie.graphs import GraphError
from coterie_lab.data.streams import IGNORED, Streams, whole
from coterie_lab.tasks.language.settings import PRESETS, Settings, from_preset
from coterie_lab.tasks.language.train import LanguageTask, build, groups, train
from coterie_lab.training import checkpoint, optimizers
from coterie_lab.training import graph as graph_module
from coterie_lab.training.distributed import World
from coterie_lab.training.graph import AGAIN, WARM_UP, GraphedUpdate
from coterie_lab.training.logs import read_journal
from coterie_lab.training.moves import read_moves
from coterie_lab.training.run import Run
from coterie_lab.training.update import Update
from tests.corpora import small
from tests.killing import assert_same, ctrl_c

# -- data ---------------------------------------------------------------------------------------------------------


def test_streams_read_the_text_side_by_side_and_share_it_among_processes():
    ids = torch.arange(100).numpy().astype("uint16")
    streams = Streams(ids, 4, 6)
    assert streams.steps == 4
    words, targets = streams.batch(2)
    assert words.tolist()[1] == [36, 37, 38, 39, 40, 41]
    assert torch.equal(targets, words + 1)
    halves = [Streams(ids, 4, 6, rank, 2).batch(2)[0] for rank in range(2)]
    assert torch.equal(torch.cat(halves), words)
    with pytest.raises(ValueError, match="too short for 60 sequences"):
        Streams(ids, 60, 6)
    with pytest.raises(ValueError, match="shared evenly"):
        Streams(ids, 4, 6, 0, 3)


@pytest.mark.parametrize(("n", "sequences", "length"), [(101, 4, 7), (100, 7, 3), (3, 16, 64), (2, 1, 1)])
def test_evaluation_meets_every_word_but_the_first_once_after_the_one_before(n, sequences, length):
    ids = torch.arange(n).numpy().astype("int32")
    met = []
    for words, targets in whole(ids, sequences, length):
        real = targets != IGNORED
        assert torch.equal(targets[real], words[real] + 1)
        met += targets[real].tolist()
    assert sorted(met) == list(range(1, n))


# -- settings and model -------------------------------------------------------------------------------------------


def test_presets_differ_as_the_paper_does():
    paper, best = from_preset("paper"), from_preset("best")
    assert (paper.dropout, paper.accumulator, paper.head) == (0.0, 0.0, "self-organized-paper")
    assert (best.dropout, best.accumulator, best.head) == (0.25, 1e-5, "self-organized")
    assert from_preset("paper", dropout=0.5).dropout == 0.5
    for head in ("full", "full-compiled", "full-chunked", "importance", "nce"):  # nobody there starts from the counts
        assert from_preset("paper", head=head).head_options == {"biases": "random"}
    for head in ("hsm-frequency", "hsm-similarity"):
        assert from_preset("paper", head=head).head_options == {"bias": False}
    printed = {"bias": False, "own_words": 0}
    assert from_preset("paper", head="random-clusters").head_options == printed
    assert from_preset("paper", head="self-organized").head_options == {**printed, "reorganize_every": 1000}
    assert paper.head_options == {}
    assert from_preset("paper", head="nce", head_options={"biases": "counts"}).head_options == {"biases": "counts"}
    assert best.head_options == {}  # when to reorganize is the head's own to decide
    for preset in PRESETS:
        settings = from_preset(preset)
        assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"dropout": 1.0},
        {"optimizer": "sgd"},
        {"tied": True, "hidden": 8},
        {"nonsense": 1},
        {"settle": 2},
        {"settle": 0.5, "head_options": {"reorganize_until": 9}},
        {"keep": "first"},
        {"epochs": "x"},
        {"epochs": 1.5},
        {"graph": 1},
        {"dropout": "x"},
        {"learning_rate": math.nan},
        {"head_options": 3},
        {"seed": -1},
        {"updates": 0},
        {"evaluate_at": "3,x"},
    ],
)
def test_wrong_settings_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        from_preset("best", **wrong)


def test_every_parameter_is_trained_once_and_starts_as_told(corpus):
    settings = small(tied=True)
    model = build(settings, corpus.counts)
    found = [parameter for group in groups(model, settings) for parameter in group["params"]]
    assert len(found) == len(set(found)) == len(list(model.parameters()))
    assert model.head.weight is model.embedding.weight
    assert float(model.embedding.weight.detach().abs().max()) <= 0.1
    assert not model.head.projection.any()  # the maps start as identities


def test_tied_a_word_goes_in_as_its_own_vector_and_its_clusters(corpus):
    model = build(small(tied=True), corpus.counts)
    words = torch.arange(corpus.n_words)
    head, own = model.head, model.embedding.weight
    alone = head.partition.own
    assert alone.numel() == 8
    assert torch.equal(model.embedding(words), head.embed(words))
    assert torch.equal(model.embedding(alone), own[alone])  # they have no cluster
    head.partition.assign_(head.partition.cluster_of.roll(1))  # words that move take the new cluster's
    assert torch.equal(model.embedding(words), head.embed(words))
    model.embedding(words[:20]).sum().backward()
    joined = torch.bincount(head.partition.cluster_of[:20], minlength=head.n_clusters + 1)[:-1].float()
    assert joined.sum() < 20
    assert torch.equal(head.cluster_weight.grad[:, 0], joined)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.head.cluster_weight.zero_()
    assert torch.equal(copied.embedding(words), copied.embedding.weight)  # it follows the copy's head
    assert not torch.equal(model.embedding(words), own)
    untied = build(small(tied=False), corpus.counts)
    assert torch.equal(untied.embedding(words), untied.embedding.weight)


# -- the loop -----------------------------------------------------------------------------------------------------


def test_words_settle_for_the_rest_of_the_run(corpus, tmp_path):
    settings = small(epochs=2, settle=0.5, head_options={"reorganize_every": 2})
    progress = train(corpus, tmp_path / "run", settings)
    moved = [record["step"] for record in read_journal(tmp_path / "run/reorganizations.jsonl")]
    assert moved == list(range(2, progress.step // 2 + 1, 2))


def test_a_short_run_knows_that_its_clusters_are_random(corpus, tmp_path):
    for name, options in (("never", {"reorganize_every": 10**6}), ("fixed", {"reorganize_every": None})):
        train(corpus, tmp_path / name, small(epochs=1, head_options=options))
    assert json.loads((tmp_path / "never/result.json").read_text())["random_clusters"]
    assert not json.loads((tmp_path / "fixed/result.json").read_text())["random_clusters"]  # that is what it is


@pytest.mark.parametrize(
    ("losses", "patience", "kept"),
    [
        ((5.0, 3.0, 4.0), None, {"best": (3.0, 2), "last": (4.0, 3)}),
        # Better than the one before is not better.
        ((5.0, 3.0, 4.0, 3.9, 3.8), 2, {"best": (3.0, 2), "last": (3.9, 4)}),
        ((5.0, 3.0, math.nan), None, {"best": (3.0, 2), "last": (3.0, 2)}),
    ],
)
@pytest.mark.parametrize("keep", ["best", "last"])
def test_the_model_that_is_kept(corpus, tmp_path, keep, losses, patience, kept, monkeypatch):
    told = iter(losses)
    monkeypatch.setattr("coterie_lab.tasks.language.train.LanguageTask.evaluate", lambda self: {"loss": next(told)})
    progress = train(corpus, tmp_path / "run", small(epochs=len(losses), keep=keep, patience=patience))
    saved = checkpoint.load(tmp_path / "run/model.pt")
    loss, epoch = kept[keep]
    assert saved["evaluation"]["loss"] == progress.best["loss"] == loss
    assert saved["evaluation"]["epoch"] == epoch
    last = checkpoint.load(tmp_path / "run/checkpoint.pt")["model"]
    same = all(torch.equal(saved["model"][name], value) for name, value in last.items())
    assert same == (progress.best["step"] == progress.step)


def test_a_run_learns_logs_and_finishes(corpus, tmp_path):
    progress = train(corpus, tmp_path / "run", small(learning_rate=0.2))
    run = Run(tmp_path / "run")
    records = read_journal(run.log)
    losses = [record["loss"] for record in records if record["event"] == "train"]
    steps = [record["step"] for record in records if record["event"] == "train"]
    assert steps == list(range(1, progress.step + 1))
    assert sum(losses[-10:]) < sum(losses[:10]) - 2
    looks = [record for record in records if record["event"] == "evaluate"]
    assert [record["step"] for record in looks] == [progress.step // 2, progress.step]
    product = looks[-1]["cluster_perplexity"] * looks[-1]["in_cluster_perplexity"]
    assert product == pytest.approx(looks[-1]["perplexity"])
    moves = read_journal(run.reorganizations)
    assert len(moves) > 2
    assert all(0 <= move["share_of_mass"] <= 1 for move in moves)
    result = json.loads(run.result.read_text())
    assert result["best"] == progress.best
    assert result["random_clusters"] is False
    assert {"command", "versions", "hardware", "git"} <= read_journal(run.environments)[0].keys()
    assert list((tmp_path / "run/tensorboard").iterdir())


def test_ctrl_c_saves_and_stops_and_resuming_changes_nothing(corpus, tmp_path):
    train(corpus, tmp_path / "whole", small(log_every=4))
    with ctrl_c(LanguageTask, at=21):
        progress = train(corpus, tmp_path / "cut", small(log_every=4))
    assert (progress.step, progress.finished) == (22, False)
    with (tmp_path / "cut/moves.jsonl").open("a") as file:
        file.write('{"step": 30, "moved"')  # what a killed run had begun to write
    assert len(read_moves(tmp_path / "cut/moves.jsonl")) == 2
    assert train(corpus, tmp_path / "cut", small(log_every=4), resume=True).finished
    assert_same(tmp_path / "cut", tmp_path / "whole")
    assert not json.loads((tmp_path / "cut/config.json").read_text())["settings"]["tied"]


def test_a_run_ends_after_its_updates_and_is_evaluated_where_asked(corpus, tmp_path):
    settings = small(updates=40, evaluate_every=25, evaluate_at="3, 25, 39")
    assert train(corpus, tmp_path / "run", settings).step == 40 < 64  # of an epoch
    log = read_journal(tmp_path / "run/log.jsonl")
    looks = {event: [r["step"] for r in log if r["event"] == event] for event in ("evaluate", "aside")}
    assert looks == {"evaluate": [25, 40], "aside": [3, 39]}
    rates = [record["learning_rate"] for record in log if record["event"] == "train"]
    assert rates[-1] == pytest.approx(0.002 / 40)  # the schedule ends there
    more = small(updates=70, epochs=1)  # more than an epoch has
    assert train(corpus, tmp_path / "more", more).step == 70


def test_looks_around_reorganizations_change_nothing(corpus, tmp_path):
    train(corpus, tmp_path / "plain", small())
    train(corpus, tmp_path / "watched", small(evaluate_moves=True))
    logs = [read_journal(tmp_path / name / "log.jsonl") for name in ("plain", "watched")]
    plain, watched = ([r["loss"] for r in log if r["event"] in ("train", "evaluate")] for log in logs)
    assert watched == plain
    moved = [record["step"] for record in read_journal(tmp_path / "watched/reorganizations.jsonl")]
    before, after = ([r for r in logs[1] if r["event"] == event] for event in ("before", "after"))
    assert len(moved) > 3
    assert [r["step"] for r in before] == [r["step"] for r in after] == moved
    assert all(a["loss"] != b["loss"] and a["seconds"] < b["seconds"] for b, a in zip(after, before, strict=True))
    assert all(record["words_per_second"] > 0 for log in logs for record in log if record["event"] == "train")
    train(corpus, tmp_path / "full", small(head="full", head_options={}, evaluate_moves=True))  # which has no clusters


# -- the graph ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_every_batch_is_trained_once_whether_recorded_or_not(monkeypatch, fails):
    seen, said = [], []

    class FakeUpdate:
        device, optimizer = torch.device("cpu"), SimpleNamespace(zero_grad=lambda set_to_none: None)

        def __call__(self, batch):
            seen.append(batch.tolist())

    def capture(update, *batch, warm_up, stream, pool):
        if fails:
            raise GraphError("FakeUpdate cannot be recorded as a CUDA graph: operation not permitted")
        assert (warm_up, pool) == (0, "the pool")  # recording computes nothing
        return update

    stream = SimpleNamespace(wait_stream=lambda other: None)
    cuda = SimpleNamespace(
        Stream=lambda device: stream, stream=nullcontext, current_stream=lambda: stream,
        graph_pool_handle=lambda: "the pool",
    )  # fmt: skip
    monkeypatch.setattr(graph_module, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(graph_module.graphs, "capture", capture)
    update = GraphedUpdate(FakeUpdate(), said.append)
    # Two shapes in turn, one that comes once, and one that comes late and often enough for its one update before.
    shapes = [(2,), (3,)] * (WARM_UP + 2) + [(2,), (4,)] + [(5,)] * (AGAIN + 1)
    given = [torch.full(shape, n) for n, shape in enumerate(shapes)]
    for batch in given:
        update(batch)
    assert seen == [batch.tolist() for batch in given]
    assert list(update.recordings) == ([] if fails else [((2,),), ((3,),), ((5,),)])
    assert len(said) == fails
    assert all("operation not permitted: the update runs without a graph" in line for line in said)


def test_without_a_gpu_the_update_runs_as_it_is(corpus):
    task = LanguageTask(corpus, small(), torch.device("cpu"), World())
    optimizer = optimizers.build(small(), task.groups())
    update = Update(task, optimizer, 0.25, torch.device("cpu"), None)
    assert graph_module.graphed(update, True, True, print) is update


def test_an_update_clips_carries_and_sums(corpus):
    task = LanguageTask(corpus, small(dropout=0.0), torch.device("cpu"), World())
    optimizer = optimizers.build(small(), task.groups())
    update = Update(task, optimizer, 0.01, torch.device("cpu"), None)
    batch = task.batch(0)
    with torch.no_grad():
        expected, state = task.model(*batch, None)
    others = [p for p in task.model.parameters() if p is not task.model.embedding.weight]
    seen = []
    own = optimizer.step

    def step(scale):
        norm = torch.stack([p.grad.norm() for p in others]).norm()
        seen.append((float(scale), float(norm)))
        own(scale=scale)

    optimizer.step = step
    update(*batch)
    ((scale, norm),) = seen
    assert scale == pytest.approx(norm / 0.01, rel=1e-3)
    assert scale > 2  # it did clip
    torch.testing.assert_close(task.carried, state)
    assert float(update.loss_sum) == pytest.approx(float(expected))
    task.start_epoch()
    assert not task.carried[0].any()


def test_biases_start_from_the_counts_in_a_model_too():
    counts = torch.arange(1, 60)
    for head in ("self-organized", "full", "importance", "nce"):
        model = build(small(head=head, head_options={}), counts)
        assert torch.equal(model.head.bias, log_frequency(counts))
        assert model.head.weight.abs().max() <= 0.1 < model.head.bias.abs().max()
    assert build(small(head="full", head_options={"biases": "random"}), counts).head.bias.abs().max() <= 0.1
