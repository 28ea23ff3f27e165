"""`coterie lm` and `coterie clusters` from end to end on a tiny corpus, and their answers to mistakes."""

import json
import math
import shutil
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from coterie_lab.data.corpus import Corpus, prepare
from coterie_lab.data.reading import standard_input
from coterie_lab.tasks.language.evaluate import evaluate
from coterie_lab.tasks.language.settings import from_preset
from coterie_lab.tasks.language.trained import Trained
from tests.command_line import SMALL, coterie
from tests.corpora import tiny_corpus, tiny_text


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return tiny_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    done = coterie("lm", "train", corpus.path, "--out", out, *SMALL)
    assert done.exit_code == 0, done.exception
    assert "perplexity" in done.stdout
    return out


@pytest.fixture(scope="module")
def full_run(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "full"
    arguments = [option for option in SMALL if not option.startswith("--head")]
    assert coterie("lm", "train", corpus.path, "--out", out, "--head", "full", *arguments).exit_code == 0
    return out


def test_eval_agrees_with_the_probabilities_themselves(corpus, run):
    found = json.loads(coterie("lm", "eval", run, "--json", "--device", "cpu").stdout)
    trained = Trained.open(run, "cpu")
    ids = torch.from_numpy(corpus.dev.astype("int64"))
    with torch.no_grad():
        one = evaluate(trained.model, corpus.dev, corpus.counts, sequences=1)
        hidden, _ = trained.model.hidden(ids[None, :-1])
        log_prob = trained.model.head.log_prob(hidden)[0].gather(1, ids[1:, None]).squeeze(1).double()
    assert one.words == found["words"] == len(ids) - 1
    assert one.loss == pytest.approx(-float(log_prob.mean()), rel=1e-5)
    assert found["perplexity"] == pytest.approx(found["cluster_perplexity"] * found["in_cluster_perplexity"], rel=1e-6)
    assert sum(band["share"] for band in found["bands"]) == pytest.approx(1)
    total = sum(band["share"] * math.log(band["perplexity"]) for band in found["bands"])
    assert total == pytest.approx(math.log(found["perplexity"]))
    frequent = corpus.counts.argsort(descending=True, stable=True)[:100]
    share = torch.isin(ids[1:], frequent).double().mean()
    assert found["bands"][0]["share"] == pytest.approx(float(share))
    assert json.loads((run / "result.json").read_text())["best"]["loss"] == pytest.approx(found["loss"])
    assert "inside the cluster" in coterie("lm", "eval", run).stdout


def test_generate_writes_known_words_and_repeats_itself_with_a_seed(corpus, run, full_run):
    word = corpus.words[5]
    for folder, options in ((run, ()), (run, ("--top-k", "5")), (full_run, ("--top-p", "0.5", "--temperature", "0.7"))):
        done = coterie("lm", "generate", folder, "--prompt", word, "--length", "12", "--seed", "3", *options)
        assert done.exit_code == 0, done.exception
        words = done.stdout.split()
        assert words[0] == word
        assert len(words) == 13
        assert set(words) <= set(corpus.words) - {"<unk>"}
        again = coterie("lm", "generate", folder, "--prompt", word, "--length", "12", "--seed", "3", *options)
        assert again.stdout == done.stdout
    trained = Trained.open(run, "cpu")
    greedy = [list(trained.generate(word, 8, temperature=0, seed=seed)) for seed in (1, 2)]
    assert greedy[0] == greedy[1]


def test_a_prompt_goes_on_where_it_ends(tmp_path):
    """In a text with <eos> at line ends too; an unfinished line is not ended."""
    (tmp_path / "text.txt").write_text(tiny_text().replace("a ", "a\n"))
    corpus = prepare([tmp_path / "text.txt"], tmp_path / "data", eos=True)
    assert coterie("lm", "train", corpus.path, "--out", tmp_path / "run", *SMALL).exit_code == 0
    trained, (one, two) = Trained.open(tmp_path / "run", "cpu"), corpus.words[5:7]
    assert trained.tokens(f"{one} {two}") == [one, two]
    assert trained.tokens(f"{one}\n{two}\n") == [one, "<eos>", two, "<eos>"]
    with pytest.raises(ValueError, match="no word of the prompt 'zebra'"):
        next(trained.generate("zebra", 1))
    scores = list(trained.score([f"{one} {two}", f"{one} {two}\n"]))
    assert scores[0] == scores[1]
    assert scores[0].words == 2  # the line's end is one


def test_eval_of_a_run_in_bfloat16_is_the_trainings(corpus, tmp_path):
    arguments = ("lm", "train", corpus.path, "--out", tmp_path / "run", *SMALL, "--precision", "bfloat16")
    assert coterie(*arguments).exit_code == 0
    found = json.loads(coterie("lm", "eval", tmp_path / "run", "--json", "--device", "cpu").stdout)
    assert json.loads((tmp_path / "run/result.json").read_text())["best"]["loss"] == found["loss"]


def test_eval_says_how_to_name_a_text_that_has_moved(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    config = json.loads((tmp_path / "run/config.json").read_text())
    config["corpus"]["path"] = str(tmp_path / "gone")
    (tmp_path / "run/config.json").write_text(json.dumps(config))
    assert "say where it is with --data" in str(coterie("lm", "eval", tmp_path / "run").exception)


def test_lines_that_are_no_text_are_named_on_standard_input_too(run):
    for given, said in (
        (b"fine\n\xff\xfe\n", "standard input, line 2: byte 1 of the line is no valid UTF-8"),
        (b"x" * (2 << 20), "standard input, line 1: it is longer than"),
        (b"fine\nnot\0fine\n", "standard input, line 2: byte 4 of the line is NUL"),
    ):
        assert said in str(coterie("lm", "score", run, stdin=given).exception)


def test_no_more_is_read_of_a_line_than_it_may_have(monkeypatch):
    endless = SimpleNamespace(readline=lambda limit: b"x" * limit)
    for given, said in ((SimpleNamespace(buffer=endless), "line 1: it is longer than"), (None, "is closed")):
        monkeypatch.setattr("sys.stdin", given)
        with pytest.raises(ValueError, match=f"standard input,? {said}"):
            next(standard_input())


def test_unknown_is_never_written(run):
    trained = Trained.open(run, "cpu")
    with torch.no_grad():
        trained.model.head.bias[0] = 50.0  # inside its cluster, always <unk>
        trained.model.head.cluster_bias[int(trained.model.head.partition.cluster_of[0])] = 50.0
    for temperature in (0.0, 1.0):
        assert "<unk>" not in list(trained.generate("", 3, temperature=temperature, seed=0))


def test_score_adds_up(corpus, run):
    line = " ".join(tiny_text(seed=9).split()[:12])
    trained = Trained.open(run, "cpu")
    done = coterie("lm", "score", run, stdin=f"{line}\nnonsense {line}\n\nalone\n")
    rows = [row.split("\t") for row in done.stdout.splitlines()]
    assert [int(row[1]) for row in rows] == [11, 12, 0, 0]
    assert int(rows[1][2]) == int(rows[0][2]) + 1
    ids = torch.tensor(trained.ids(trained.tokens(line)))
    state, total = None, 0.0
    with torch.no_grad():
        for word, after in pairwise(ids):
            hidden, state = trained.model.hidden(word.reshape(1, 1), state)
            total += float(trained.model.head.log_prob(hidden)[0, 0, after])
    assert next(iter(trained.score([line]))).log_prob == pytest.approx(total, rel=1e-5)
    assert float(rows[0][0]) == pytest.approx(total, abs=1e-3)


def test_clusters_are_shown(corpus, run):
    everything = json.loads(coterie("clusters", run, "--all", "--json").stdout)
    assert sorted(word for cluster in everything for word in cluster["words"]) == sorted(corpus.words)
    assert sum(cluster["share"] for cluster in everything) == pytest.approx(1)
    alone, *everything = everything
    assert (alone["number"], alone["size"]) == (None, 8)
    assert set(alone["words"]) == {corpus.words[w] for w in corpus.counts.argsort(descending=True, stable=True)[:8]}
    assert [cluster["share"] for cluster in everything] == sorted((c["share"] for c in everything), reverse=True)
    lines = coterie("clusters", run, "--n", "3").stdout.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("alone ")
    readable = [cluster["number"] for cluster in everything if len(cluster["words"]) > 2]
    for n in (1, 2, len(readable) - 1, len(readable), len(readable) + 5):
        shown = [cluster["number"] for cluster in json.loads(coterie("clusters", run, "--n", n, "--json").stdout)[1:]]
        places = [readable.index(number) for number in shown]
        assert len(set(places)) == min(n, len(readable))
        assert places == sorted(places)
        assert n < 2 or (places[0], places[-1]) == (0, len(readable) - 1)  # from the most frequent to the rarest
    word = corpus.words[24]
    company = json.loads(coterie("clusters", run, word, "--json").stdout)[0]
    own = next(cluster for cluster in everything if word in cluster["words"])
    assert company["cluster"]["number"] == own["number"]
    assert set(company["neighbours"]) <= set(own["words"]) - {word}
    assert own["number"] not in [cluster["number"] for cluster in company["next_best"]]
    assert len(company["next_best"]) == 3
    assert coterie("clusters", run, word).stdout.startswith(f"{word}: cluster {own['number']}")
    frequent = alone["words"][0]
    assert coterie("clusters", run, frequent).stdout.startswith(f"{frequent}: stands alone, in no cluster")
    found = json.loads(coterie("clusters", run, frequent, "--json").stdout)
    assert found == [{"word": frequent, "cluster": None, "neighbours": [], "next_best": []}]


def test_random_clusters_are_called_so(corpus, tmp_path):
    arguments = [*SMALL[:-1], "--head-option=reorganize_every=1000"]
    assert coterie("lm", "train", corpus.path, "--out", tmp_path / "run", *arguments).exit_code == 0
    for options in ((), ("--json",), (corpus.words[9],)):
        done = coterie("clusters", tmp_path / "run", *options)
        assert ": no reorganization yet" in (done.stderr if options == ("--json",) else done.stdout.splitlines()[0])
    assert coterie("report", tmp_path / "run", "--out", tmp_path / "page.html").exit_code == 0


def test_the_presets_and_other_heads_train(corpus, tmp_path):
    arguments = ["--hidden", "8", "--embedding", "8", "--sequences", "8", "--length", "40", "--epochs", "1"]
    done = coterie("lm", "train", corpus.path, "--out", tmp_path / "paper", "--preset", "paper", *arguments)
    assert done.exit_code == 0, done.exception
    stored = json.loads((tmp_path / "paper/config.json").read_text())["settings"]
    given = {"hidden": 8, "embedding": 8, "sequences": 8, "length": 40, "epochs": 1}
    assert stored == from_preset("paper", **given).to_dict()
    assert (stored["head"], stored["accumulator"]) == ("self-organized-paper", 0.0)
    for head in ("adaptive", "random-clusters", "hsm-frequency"):
        done = coterie("lm", "train", corpus.path, "--out", tmp_path / head, "--head", head, *arguments)
        assert done.exit_code == 0, done.exception
    done = coterie(
        "lm", "train", corpus.path, "--out", tmp_path / "tied", "--tied", "--optimizer", "adamw", "--clip", "0",
        "--head-option", "statistic=table", "--head-option", "projection=False", *arguments,
    )  # fmt: skip
    assert done.exit_code == 0, done.exception
    trained = Trained.open(tmp_path / "tied", "cpu")
    assert trained.model.head.weight is trained.model.embedding.weight
    assert trained.model.head.projection is None


TRAINING_MISTAKES = [
    ("--device cuda", "PyTorch sees none"),
    ("--head none", "there is no head called 'none'"),
    ("--head-option x=1", "has no option 'x': leave it out"),
    ("--head-option x", "takes NAME=VALUE; got 'x'"),
    ("--head-option reduction=none", "reduction is not an option of the head"),
    ("--settle 0.5 --head-option reorganize_until=9", "settle and the head's reorganize_until say the same"),
    ("--preset worst", "there is no preset 'worst'; there are: best, paper"),
    ("--sequences 5000", "too short for 5000 sequences"),
    ("--resume --force", "give one of them"),
    ("--optimizer sgd", "optimizer must be one of adagrad, adam, adamw; got 'sgd'"),
    ("--initial-range -1", "initial_range must be at least 0 and at most 1,000,000.0; got -1.0"),
    ("--hidden 8", "tied weights need an embedding as wide as the hidden layer; got 512 and 8"),
    (f"--seed {2**63}", "seed must be at least 0 and at most 9,223,372,036,854,775,807"),
]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("lm train {data} --out {run}", "holds a run: resume it"),
        ("lm train {data} --out {run} --resume --hidden 8", "started with hidden 16, not 8"),
        *((f"lm train {{data}} --out {{new}} --tied {options}", said) for options, said in TRAINING_MISTAKES),
        ("lm train {nothing} --out {new}", "coterie lm prepare"),
        ("lm generate {run} --temperature inf", "temperature must be finite and not negative; got inf"),
        ("lm generate {run} --prompt Zebra", "no word of the prompt 'Zebra'"),
        ("lm generate {run} --top-k 100000", "top_k must be from 1"),
        ("lm eval {run} --data {nothing}", "is no folder"),
        ("lm eval {run} --device foo", "device must be one of auto, cpu, cuda; got 'foo'"),
        ("lm eval {run} --part test", "has no part 'test'"),
        ("lm eval {nothing}", "is not a run"),
        ("clusters {run} zebra", "is not in the vocabulary"),
        ("clusters {full}", "which has no clusters"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(corpus, run, full_run, tmp_path, arguments, said):
    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    names = {"data": corpus.path, "run": run, "full": full_run, "new": tmp_path / "new", "nothing": tmp_path / "no"}
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    done = coterie(*(argument.format(**names) for argument in arguments.split()))
    assert done.exit_code == 1
    assert said in str(done.exception)
    assert not (tmp_path / "new").exists()
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_another_corpus_is_not_taken_for_the_one_trained_on(run, tmp_path):
    other = tiny_corpus(tmp_path, words=3000)
    done = coterie("lm", "train", other.path, "--out", run, "--resume")
    assert "was trained on another text" in str(done.exception)
    assert Corpus.open(other.path).n_words


def test_resuming_a_finished_run_changes_nothing(corpus, run):
    log = (run / "log.jsonl").read_bytes()
    model = (run / "model.pt").read_bytes()
    done = coterie("lm", "train", corpus.path, "--out", run, "--resume")
    assert done.exit_code == 0, done.exception
    assert (run / "log.jsonl").read_bytes() == log
    assert (run / "model.pt").read_bytes() == model
