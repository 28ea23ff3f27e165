"""The Transformer: causal, relative where it should be, tied to one matrix, and trained with every head."""

import json
import math

import pytest
import torch
from torch import nn

from coterie_lab.data.corpus import Corpus
from coterie_lab.data.streams import Windows
from coterie_lab.heads import HEADS
from coterie_lab.models.transformer import Rotary, Transformer
from coterie_lab.serve.language import Predictor
from coterie_lab.tasks.language.evaluate import evaluate
from coterie_lab.tasks.language.settings import Settings, from_preset
from coterie_lab.tasks.language.train import LanguageTask, build, groups, train
from coterie_lab.tasks.language.trained import Trained
from coterie_lab.training import optimizers
from coterie_lab.training.distributed import World
from coterie_lab.training.update import Update
from tests.command_line import coterie
from tests.killing import assert_same, ctrl_c

TINY = {
    "hidden": 32, "layers": 2, "attention_heads": 4, "sequences": 8, "length": 12, "updates": 24, "warmup": 4,
    "log_every": 1, "device": "cpu", "learning_rate": 0.01,
}  # fmt: skip
POSITIONS = pytest.mark.parametrize("positions", ["learned", "rotary"])


def tiny(**given) -> Settings:
    return from_preset("best", "transformer", **{**TINY, **given})


def made(corpus: Corpus, **given) -> Transformer:
    return build(tiny(**given), corpus.counts).eval()


# -- the model ----------------------------------------------------------------------------------------------------


@POSITIONS
@torch.no_grad()
def test_a_later_word_changes_no_earlier_vector(corpus, positions):
    model, words = made(corpus, positions=positions), torch.arange(12)[None] + 3
    hidden, _ = model.hidden(words)
    for at in range(12):
        other = words.clone()
        other[0, at] = 50
        changed = (model.hidden(other)[0] != hidden).any(-1)[0]
        assert not changed[:at].any()
        assert changed[at:].all()


def test_rotated_products_depend_on_the_distance_alone():
    turn = Rotary(8, 40)
    query, key = torch.randn(2, 8)
    queries, keys = (turn(vector.expand(40, 8)) for vector in (query, key))
    products = queries @ keys.T  # (40, 40)
    for distance in range(-5, 6):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-5)
    assert products[0, 0] != products[0, 1]
    torch.testing.assert_close(queries.norm(dim=-1), query.norm().expand(40))


@POSITIONS
@torch.no_grad()
def test_words_read_bit_by_bit_are_those_read_at_once(corpus, positions):
    model, words = made(corpus, positions=positions), torch.arange(30).reshape(2, 15)
    whole, _ = model.hidden(words[:, :12])
    state, parts = None, []
    for part in words[:, :12].split([1, 4, 2, 5], 1):
        hidden, state = model.hidden(part, state)
        parts.append(hidden)
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    # Beyond the window each word sees what fits: the words before, of which the oldest are forgotten.
    after, state = model.hidden(words[:, 12:], state)
    torch.testing.assert_close(after, model.hidden(words[:, 3:])[0][:, -3:])
    assert torch.equal(state[0], words[:, 3:])
    torch.testing.assert_close(model.hidden(words)[0], torch.cat((whole, after), 1))


@POSITIONS
def test_it_starts_as_told(corpus, positions):
    model, untied = (made(corpus, positions=positions, hidden=64, tied=tied) for tied in (True, False))
    assert model.head.weight is model.embedding.weight
    assert sum(parameter is model.embedding.weight for parameter in model.parameters()) == 1
    blocks = model.body.blocks
    for matrix, expected in (
        (model.embedding.weight, 0.02), (blocks[0].attention.look.weight, 0.02), (blocks[1].inner.weight, 0.02),
        (blocks[0].attention.out.weight, 0.02 / 2), (blocks[1].out.weight, 0.02 / math.sqrt(2 * 2)),
        (model.head.cluster_weight, 0.02), (untied.head.cluster_weight, 1 / math.sqrt(3 * 64)),
    ):  # fmt: skip
        assert float(matrix.detach().std()) == pytest.approx(expected, rel=0.1)
    assert not model.head.projection.any()  # its maps are the identity
    assert (positions == "rotary") == (model.body.places is None)
    assert untied.head.weight is not untied.embedding.weight


def test_matrices_alone_decay_and_every_parameter_is_trained_once(corpus):
    settings = tiny(projection_factor=0.5)
    model = build(settings, corpus.counts)
    found = groups(model, settings)
    together = [parameter for group in found for parameter in group["params"]]
    assert len(together) == len(set(together)) == len(list(model.parameters()))
    for group in found:
        assert {parameter.ndim > 1 for parameter in group["params"]} <= {group["weight_decay"] > 0}
        assert (group["factor"] == 0.5) == all(parameter is model.head.projection for parameter in group["params"])


def test_only_training_on_a_gpu_is_compiled(corpus, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: asked.append(function) or function)
    model, words = made(corpus, compile=True), torch.arange(6).reshape(2, 3)
    expected = model.vectors(words)
    model.train().vectors(words)
    assert not asked
    assert torch.equal(model.compiled(model.eval().embedding(words)), expected)
    assert asked == [model.body.forward]
    assert model.state_dict().keys() == made(corpus).state_dict().keys()


# -- its batches --------------------------------------------------------------------------------------------------


def test_windows_meet_the_text_once_an_epoch_in_an_order_of_their_own():
    ids = torch.arange(103).numpy().astype("uint16")
    windows = Windows(ids, 4, 5, seed=3)
    assert windows.steps == 4  # 19 windows
    epochs = [[windows.batch(step) for step in range(first, first + 4)] for first in (0, 4)]
    for epoch in epochs:
        starts = torch.cat([words[:, 0] for words, _ in epoch])
        assert len(set(starts.tolist())) == 16
        assert len(set((starts % 5).tolist())) == 1
        assert all(torch.equal(targets, words + 1) for words, targets in epoch)
        assert all(torch.equal(words, words[:, :1] + torch.arange(5)) for words, _ in epoch)
    assert not torch.equal(epochs[0][0][0], epochs[1][0][0])
    again = Windows(ids, 4, 5, seed=3)
    assert torch.equal(again.batch(6)[0], epochs[1][2][0])  # whatever was read before
    assert not torch.equal(Windows(ids, 4, 5, seed=4).batch(0)[0], epochs[0][0][0])
    halves = [Windows(ids, 4, 5, 3, rank, 2).batch(6)[0] for rank in range(2)]
    assert torch.equal(torch.cat(halves), epochs[1][2][0])
    for n in range(10, 40):  # the last target is there, wherever the first window begins
        every = Windows(torch.arange(n).numpy(), 1, 5, seed=n)
        assert max(int(every.batch(step)[1].max()) for step in range(40)) < n
    with pytest.raises(ValueError, match="too short for 60 sequences"):
        Windows(ids, 60, 6, 0)


# -- a run --------------------------------------------------------------------------------------------------------


def test_a_run_learns_resumes_to_the_last_bit_and_writes_text(corpus, tmp_path):
    settings = tiny(head_options={"reorganize_every": 5}, evaluate_every=10)
    progress = train(corpus, tmp_path / "whole", settings)
    log = [json.loads(line) for line in (tmp_path / "whole/log.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in log if record["event"] == "train"]
    assert (progress.step, len(losses)) == (24, 24)
    assert sum(losses[-4:]) < sum(losses[:4])
    assert [record["step"] for record in log if record["event"] == "evaluate"] == [10, 20, 24]
    rates = [record["learning_rate"] for record in log if record["event"] == "train"]
    assert rates[:4] == pytest.approx([0.0025, 0.005, 0.0075, 0.01])
    assert rates[-1] < 1e-3  # the cosine ends with the run
    with ctrl_c(LanguageTask, at=13):
        assert train(corpus, tmp_path / "cut", settings).step == 14
    assert train(corpus, tmp_path / "cut", settings, resume=True).finished
    assert_same(tmp_path / "cut", tmp_path / "whole")

    trained = Trained.open(tmp_path / "whole", "cpu")
    assert evaluate(trained.model, corpus.dev, corpus.counts).loss == pytest.approx(progress.best["loss"])
    words = list(trained.generate(corpus.words[5], 20, temperature=0.8, seed=1))
    assert len(words) == 20
    assert words == list(trained.generate(corpus.words[5], 20, temperature=0.8, seed=1))
    predictor = Predictor(trained)  # word by word, from what it has read before
    for n in range(1, 6):
        text = corpus.words[3 : 3 + n]
        with torch.no_grad():
            hidden, _ = trained.model.hidden(torch.tensor([trained.ids(text)]))
            (expected,) = trained.model.head.predict(hidden)[:, -1].tolist()
        assert predictor.predict(" ".join(text), 3).words[0].word == corpus.words[expected]
    line = " ".join(corpus.words[3:23])  # longer than the window
    (score,) = trained.score([line])
    ids, state, total = torch.tensor([trained.ids(trained.tokens(line))]), None, 0.0
    with torch.no_grad():
        for part, after in ((ids[:, :12], ids[:, 1:13]), (ids[:, 12:-1], ids[:, 13:])):
            hidden, state = trained.model.hidden(part, state)
            total += float(trained.model.head(hidden, after).output.sum())
    assert score.log_prob == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("head", sorted(HEADS))
def test_every_head_trains_a_step_with_it(corpus, head, monkeypatch):
    options = {"samples": 20} if head in ("importance", "nce") else {}
    if head == "cnn":
        options = {"samples": 20, "features": 2, "widths": [2, 3]}
    if head == "full-compiled":  # whose compiler takes longer than all others together
        monkeypatch.setattr(nn.Module, "compile", lambda self: None)
    if head == "full-chunked" and not hasattr(nn.functional, "linear_cross_entropy"):
        pytest.skip("this torch has no linear_cross_entropy")
    settings = tiny(head=head, head_options=options)
    task = LanguageTask(corpus, settings, torch.device("cpu"), World())
    assert settings.tied == (task.model.embedding.weight is getattr(task.model.head, "weight", None))
    optimizer = optimizers.build(settings, task.groups())
    optimizer.set_learning_rate(1.0)
    before = [parameter.detach().clone() for parameter in task.model.parameters()]
    update = Update(task, optimizer, settings.clip, torch.device("cpu"), None)
    update(*task.batch(0))
    task.updated()
    assert 0 < float(update.loss_sum) < 50
    moved = [not torch.equal(old, new) for old, new in zip(before, task.model.parameters(), strict=True)]
    assert all(moved), [name for (name, _), ok in zip(task.model.named_parameters(), moved, strict=True) if not ok]


# -- the command --------------------------------------------------------------------------------------------------


def test_the_command_trains_one_and_uses_it(corpus, tmp_path):
    options = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]
    out = tmp_path / "run"
    done = coterie("lm", "train", corpus.path, "--out", out, "--model", "transformer", "--positions=rotary", *options)
    assert done.exit_code == 0, done.exception
    stored = json.loads((out / "config.json").read_text())["settings"]
    assert stored == tiny(positions="rotary").to_dict()
    assert (stored["optimizer"], stored["tied"], stored["head_options"]) == ("adamw", True, {})
    assert coterie("lm", "train", corpus.path, "--out", out, "--resume").exit_code == 0
    found = json.loads(coterie("lm", "eval", out, "--json", "--device", "cpu").stdout)
    assert found["loss"] == pytest.approx(json.loads((out / "result.json").read_text())["best"]["loss"])
    assert len(coterie("lm", "generate", out, "--length", "15", "--seed", "1").stdout.split()) == 15
    assert coterie("clusters", out, "--n", "2").exit_code == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--model transformer --embedding 64", "embedding is an option of --model lstm; leave it out for transformer"),
        ("--model transformer --row-accumulator", "row_accumulator is an option of --model lstm"),
        ("--model transformer --initial-range 0.1", "initial_range is an option of --model lstm"),
        ("--attention-heads 2", "attention_heads is an option of --model transformer; leave it out for lstm"),
        ("--positions rotary", "positions is an option of --model transformer"),
        ("--compile", "compile is an option of --model transformer"),
        ("--model transformer --preset paper", "the preset 'paper' is of an LSTM"),
        ("--model transformer --hidden 20", "hidden must be a multiple of 8 for 8 attention_heads"),
        ("--model transformer --hidden 24 --positions rotary", "multiple of 16 for 8 attention_heads with rotary"),
        (
            "--model transformer --tied --head adaptive --length 9 --sequences 8",
            "tied weights need a head with one vector",
        ),
        ("--model gru", "model must be one of lstm, transformer; got 'gru'"),
        ("--epochs 2 --updates 9", "--epochs and --updates both say how long to train"),
        ("--model transformer --length 5000", "too short for 64 sequences of 5000 words"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(corpus, tmp_path, options, said):
    done = coterie("lm", "train", corpus.path, "--out", tmp_path / "run", *options.split())
    assert said in str(done.exception)
    assert not (tmp_path / "run").exists()
