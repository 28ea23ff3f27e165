"""`coterie summarize` and `coterie reproduce summarization` from end to end on invented news, and mistakes."""

import json
import os
import signal
import subprocess
import sys

import pytest

from coterie_lab.data.pairs import Pairs
from coterie_lab.experiments.summarization.reproduce import Plan, reproduce
from coterie_lab.experiments.summarization.variants import VARIANTS
from coterie_lab.scoring import rouge
from coterie_lab.scoring.bootstrap import difference
from coterie_lab.tasks.language.trained import Trained as TrainedLanguageModel
from coterie_lab.tasks.summarization.clusters import load
from coterie_lab.tasks.summarization.settings import USUAL, Decoding
from coterie_lab.tasks.summarization.train import SummaryTask
from coterie_lab.tasks.summarization.trained import Trained
from tests.command_line import coterie
from tests.pairs import SMALL, news, tiny_pairs, write_gigaword, write_tsv

CLUSTERED = ["self-organized", "titles", "moving", "joint"]
ARGUMENTS = ["--hidden=16", "--embedding=16", "--batch=32", "--epochs=1", "--device=cpu"]
LANGUAGE = ["--hidden=8", "--embedding=8", "--sequences=4", "--epochs=1", "--device=cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Prepared, clustered and trained through the command line."""
    folder = tmp_path_factory.mktemp("summarize")
    write_tsv(folder / "news.tsv", [*news(250), ("unrelated words stand here alone", "nothing shared with that")])
    prepared = coterie("summarize", "prepare", folder / "news.tsv", folder / "data", "--valid", "20", "--test", "20")
    assert prepared.exit_code == 0, prepared.exception
    assert "no word that carries meaning in common" in prepared.stdout
    assert "251 pairs read" in prepared.stdout
    learned = coterie("summarize", "cluster", folder / "data", "--out", folder / "words", *LANGUAGE)
    assert learned.exit_code == 0, learned.exception
    trained = coterie(
        "summarize", "train", folder / "data", "--out", folder / "run", "--partition", folder / "words", *ARGUMENTS
    )
    assert trained.exit_code == 0, trained.exception
    assert "perplexity" in trained.stdout
    return folder


def test_clusters_are_the_language_models(folder):
    seats = TrainedLanguageModel.open(folder / "words", "cpu").organized.partition.cluster_of
    assert Trained.open(folder / "run", "cpu").model.head.partition.cluster_of.tolist() == seats.tolist()
    assert coterie("clusters", folder / "words", "--n", "3").exit_code == 0


def test_clusters_are_learned_from_both_sides_or_from_the_titles_alone(folder, tmp_path):
    pairs = Pairs.open(folder / "data")
    learn = ("summarize", "cluster", folder / "data", "--titles-only")
    assert coterie(*learn, "--out", tmp_path / "alone", *LANGUAGE).exit_code == 0
    for path, reading in ((folder / "words", "both"), (tmp_path / "alone", "titles")):
        own = TrainedLanguageModel.open(path, "cpu")
        assert own.counts.tolist() == pairs.language(reading).counts.tolist()
        usual = USUAL[reading]["head_options"]["reorganize_every"]
        assert own.settings.head_options["reorganize_every"] == usual
    # A run goes on with the text it began with, which need not be said again, and with its options.
    done = coterie(*learn, "--out", folder / "words", "--resume")
    assert "was trained on another text" in str(done.exception)
    assert coterie(*learn[:3], "--out", tmp_path / "alone", "--resume").exit_code == 0
    once_more = ("--out", folder / "run", "--resume", "--head-option", "projection=false")
    assert coterie("summarize", "train", folder / "data", *once_more).exit_code == 0


def test_generate_writes_a_title_for_each_line(folder):
    lines = [article for article, _ in news(5, seed=7)]
    (folder / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    trained = Trained.open(folder / "run", "cpu")
    expected = list(trained.summarize(lines, Decoding()))
    piped = coterie("summarize", "generate", folder / "run", stdin="".join(f"{line}\n" for line in lines))
    assert piped.stdout.splitlines() == expected
    for options in (("--interactive",), ("--batch", "2")):
        done = coterie("summarize", "generate", folder / "run", folder / "in.txt", *options)
        assert done.stdout.splitlines() == expected
    duc = coterie("summarize", "generate", folder / "run", folder / "in.txt", "--duc", "--length", "7", "--beam", "2")
    assert [len(line.split()) for line in duc.stdout.splitlines()] == [7] * 5


def test_resuming_needs_no_options_and_changes_nothing(folder):
    before = {path: path.read_bytes() for path in folder.glob("run/*.jsonl") if "environment" not in path.name}
    done = coterie("summarize", "train", folder / "data", "--out", folder / "run", "--resume")
    assert done.exit_code == 0, done.exception
    assert {path: path.read_bytes() for path in before} == before
    assert coterie("summarize", "cluster", folder / "data", "--out", folder / "words", "--resume").exit_code == 0


def test_input_feeding_is_a_switch_that_a_run_remembers(folder, tmp_path):
    train = ("summarize", "train", folder / "data", "--out", tmp_path / "run")
    done = coterie(*train, "--input-feeding", *ARGUMENTS)
    assert done.exit_code == 0, done.exception
    assert Trained.open(tmp_path / "run", "cpu").model.writer.input_size == 32
    assert coterie(*train, "--resume").exit_code == 0
    refused = coterie(*train, "--resume", "--no-input-feeding")
    assert "started with input_feeding True, not False" in str(refused.exception)
    done = coterie("summarize", "generate", tmp_path / "run", "--duc", "--length=5", stdin=f"{news(1)[0][0]}\n")
    assert len(done.stdout.split()) == 5


def test_a_page_shows_the_summarizer_beside_the_language_model(folder, tmp_path):
    done = coterie("report", folder / "run", folder / "words", "--out", tmp_path / "page.html")
    assert done.exit_code == 0, done.exception
    page = (tmp_path / "page.html").read_text()
    assert 'id="explorer-0"' in page
    assert 'id="explorer-1"' in page


def test_gigaword_and_duc_score_end_to_end(folder, tmp_path):
    giga = write_gigaword(tmp_path / "sumdata", news(100))
    assert coterie("summarize", "prepare", giga, tmp_path / "giga").exit_code == 0
    done = coterie("summarize", "train", tmp_path / "giga", "--out", tmp_path / "run", "--preset", "paper", *ARGUMENTS)
    assert done.exit_code == 0, done.exception
    titles = coterie("summarize", "generate", tmp_path / "run", giga / "Giga/input.txt").stdout
    (tmp_path / "titles.txt").write_text(titles)
    done = coterie("summarize", "score", tmp_path / "titles.txt", "--references", giga / "Giga")
    assert "full-length F1" in done.stdout, done.exception
    for number in (1, 2, 3):
        (giga / f"Giga/task1_ref{number}.txt").write_text((giga / "Giga/task1_ref0.txt").read_text())
    titles = coterie("summarize", "generate", tmp_path / "run", giga / "Giga/input.txt", "--duc").stdout
    (tmp_path / "titles.txt").write_text(titles)
    done = coterie("summarize", "score", tmp_path / "titles.txt", "--references", giga / "Giga")
    assert "recall within 75 bytes, 4 references" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("train", "{data}", "--out", "{run}"), "holds a run: go on with it"),
        (("train", "{data}", "--out", "{run}", "--resume", "--batch", "8"), "started with batch 32, not 8"),
        (("train", "{data}", "--out", "{new}", "--resume", "--force"), "give one of them"),
        (("train", "{data}", "--out", "{new}", "--preset", "worst"), "there is no preset 'worst'"),
        (("train", "{data}", "--out", "{new}", "--head", "none"), "there is no head called 'none'"),
        (("train", "{data}", "--out", "{new}", "--head", "full", "--partition", "{words}"), "takes no clusters"),
        (("train", "{data}", "--out", "{new}", "--hidden", "8"), "tied weights need an embedding as wide"),
        (("train", "{nothing}", "--out", "{new}"), "coterie summarize prepare"),
        (("train", "{words}", "--out", "{new}"), "is not whole"),
        (("cluster", "{data}", "--out", "{words}", "--sequences", "4"), "holds a run"),
        (("cluster", "{data}", "--out", "{new}", "--sequences", "5000"), "too short for 5000 sequences"),
        (("cluster", "{data}", "--out", "{words}", "--resume", "--force"), "give one of them"),
        (("generate", "{nothing}"), "is not a run"),
        (("generate", "{run}", "{nothing}"), "does not exist: give a text file"),
        (("train", "{data}", "--out", "{new}", "--partition", "{nothing}"), "give a file of clusters, or the folder"),
        (("generate", "{words}"), 'not of a run of kind "summarizer"'),
        (("prepare", "{nothing}", "{new}"), "does not exist"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(folder, tmp_path, arguments, said):
    names = {"nothing": tmp_path / "no", "new": tmp_path / "new"}
    names |= {name: folder / name for name in ("data", "run", "words")}
    done = coterie("summarize", *(argument.format(**names) for argument in arguments))
    assert done.exit_code == 1
    assert said in str(done.exception)
    assert not (tmp_path / "new").exists()


# -- the experiment -----------------------------------------------------------------------------------------------

SETTINGS = {**SMALL, "epochs": 1, "hidden": 16, "embedding": 16, "batch": 64}
SMALL_LM = {"hidden": 8, "embedding": 8, "sequences": 4, "epochs": 1}


def test_clusters_of_other_pairs_are_refused_with_what_to_do(folder, tmp_path):
    other = tiny_pairs(tmp_path, 100, max_vocab=20)
    done = coterie("summarize", "train", other.path, "--out", tmp_path / "new", "--partition", folder / "words")
    assert "clusters.json is of another vocabulary: the vocabulary has 20 words" in str(done.exception)
    assert "with `coterie summarize cluster`" in str(done.exception)


def test_too_few_pairs_are_told_with_what_the_filters_left_out(tmp_path):
    write_tsv(tmp_path / "news.tsv", news(1) * 60)
    done = coterie("summarize", "prepare", tmp_path / "news.tsv", tmp_path / "data")
    assert "give more pairs" in str(done.exception)
    assert "(left out: 59 " in str(done.exception)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Two heads, two seeds, DUC; stopped in the third run and repeated."""
    folder = tmp_path_factory.mktemp("compared")
    pairs = tiny_pairs(folder, 200)
    duc = folder / "duc"
    duc.mkdir()
    some = news(6, seed=9)
    (duc / "input.txt").write_text("".join(f"{article}\n" for article, _ in some))
    for number in range(4):
        (duc / f"task1_ref{number}.txt").write_text("".join(f"{title}\n" for _, title in some))
    plan = Plan(duc=duc, sentences=4, batch=4, language_settings=SMALL_LM)
    arguments = (str(pairs.path), folder / "out", ["full", "self-organized"], [0, 1], None, plan)
    usual, calls = SummaryTask.batch, [0]

    def interrupted(self, step):
        calls[0] += 1
        if calls[0] == 10:
            os.kill(os.getpid(), signal.SIGINT)
        return usual(self, step)

    SummaryTask.batch = interrupted
    try:
        assert reproduce(*arguments, **SETTINGS) is None
    finally:
        SummaryTask.batch = usual
    first = folder / "out/runs/full-0"
    before = {path: path.read_bytes() for path in first.iterdir() if path.is_file()}
    assert "test.titles.txt" in {path.name for path in before}
    report = reproduce(*arguments, **SETTINGS)
    assert {path: path.read_bytes() for path in before} == before
    return pairs, folder / "out", report


def test_rows_have_the_clusters_that_they_say(compared):
    pairs, out, _ = compared
    learned = load(out / "clusters-both", pairs).cluster_of.tolist()
    assert TrainedLanguageModel.open(out / "clusters-both", "cpu").counts.sum() > pairs.counts.sum()  # sentences too
    for seed in (0, 1):
        head = Trained.open(out / f"runs/self-organized-{seed}", "cpu").model.head
        assert head.partition.cluster_of.tolist() == learned
        assert head.reorganize_every is None


def test_what_a_row_says_is_said_to_its_run():
    assert [VARIANTS[name].reading("best") for name in CLUSTERED] == ["both", "titles", "both", None]
    assert [VARIANTS[name].reading("paper") for name in CLUSTERED] == ["titles", "titles", "titles", None]
    every = [VARIANTS[name].settings("best").head_options["reorganize_every"] for name in CLUSTERED]
    assert every == [None, None, 100, 100]
    # What is given for all of them leaves a row what it is.
    moving = VARIANTS["moving"].settings("best", head_options={"label_smoothing": 0.2})
    assert moving.head_options == {"projection": False, "label_smoothing": 0.2, "reorganize_every": 100}
    assert moving.settle == VARIANTS["joint"].settings("best").settle == 0.5


def test_the_report_says_what_the_runs_wrote(compared):
    pairs, out, report = compared
    references = pairs.text("test", "title")
    full, ours = report["rows"]
    per_item = {}
    for row in (full, ours):
        found = [
            rouge.full_length((out / f"runs/{row['name']}-{seed}/test.titles.txt").read_text().splitlines(), references)
            for seed in (0, 1)
        ]
        per_item[row["name"]] = sum(scores.rouge1 for scores in found) / 2
        assert row["test"]["means"]["rouge1"] == pytest.approx([100 * scores.rouge1.mean() for scores in found])
        result = json.loads((out / f"runs/{row['name']}-1/result.json").read_text())
        assert row["seconds"][1] == result["training_seconds"]
    expected = difference(per_item["self-organized"], per_item["full"])
    assert report["differences"]["test"]["rouge1"] == pytest.approx([100 * value for value in expected])
    lead = [" ".join(line.split()[:8]) for line in pairs.text("test", "article")]
    assert report["lead"]["means"]["rouge2"] == pytest.approx([100 * rouge.full_length(lead, references).rouge2.mean()])
    assert [(speed["batch"], speed["equal"]) for speed in report["speeds"]] == [(1, None), (16, None), (1, 4), (16, 4)]
    text = (out / "report.md").read_text()
    for wanted in ("Table 4", "Table 5", "Table 6", "TOPIARY", "words-lvt5k-1sent", "published, on other data",
                   "Examples", "first 8 words", "How it was made", "| 31.95 |", "63 |"):  # fmt: skip
        assert wanted in text, wanted
    assert f"- *reference*: {report['examples'][0]['reference']}" in text
    assert set(report["examples"][0]) == {"sentence", "reference", "full", "self-organized"}
    saved = json.loads((out / "report.json").read_text())
    assert saved["rows"][1]["duc"]["means"] == ours["duc"]["means"]


def test_other_settings_are_refused_and_without_duc_it_says_so(compared):
    pairs, out, _ = compared
    arguments = (str(pairs.path), out, ["full"], [0])
    with pytest.raises(ValueError, match="started with embedding 16, not 24"):
        reproduce(*arguments, **{**SETTINGS, "hidden": 24, "embedding": 24})
    other = Plan(language_settings={**SMALL_LM, "hidden": 24, "embedding": 24})
    with pytest.raises(ValueError, match="started with embedding 8, not 24"):
        reproduce(str(pairs.path), out, ["self-organized"], [0], None, other, **SETTINGS)
    report = reproduce(*arguments, **SETTINGS)
    assert report["rows"][0]["duc"] is None
    assert "DUC-2004 was not given" in (out / "report.md").read_text()
    assert not report["differences"]
    assert [speed["name"] for speed in report["speeds"]] == ["full softmax"] * 2


def a_duc(folder, some):
    folder.mkdir()
    (folder / "input.txt").write_text("".join(f"{article}\n" for article, _ in some))
    for number in range(4):
        (folder / f"task1_ref{number}.txt").write_text("".join(f"{title}\n" for _, title in some))
    return folder


def test_titles_for_other_sentences_are_written_anew(compared, tmp_path):
    pairs, out, _ = compared
    one, two = a_duc(tmp_path / "one", news(6, seed=11)), a_duc(tmp_path / "two", news(6, seed=11)[::-1])
    plans = [Plan(duc=duc, sentences=0, batch=4) for duc in (one, two)]
    files = {path: path.read_text() for path in (out / "runs/full-0").glob("duc*")}
    for plan in plans:
        # Titles that are there are those that are scored.
        reproduce(str(pairs.path), out, ["full"], [0], None, plan, **SETTINGS)
        (new,) = set((out / "runs/full-0").glob("duc*")) - set(files)
        files[new] = new.read_text()
        new.write_text("".join((plan.duc / "task1_ref0.txt").read_text()))
        report = reproduce(str(pairs.path), out, ["full"], [0], None, plan, **SETTINGS)
        assert report["rows"][0]["duc"]["means"]["rouge1"] == [100.0]
    _, first, second = files.values()
    assert first.splitlines() == second.splitlines()[::-1]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda duc: (duc / "input.txt").unlink(), r"no input\.txt"),
        (lambda duc: [file.unlink() for file in duc.glob("task1*")], r"holds no task1_ref0\.txt"),
        (
            lambda duc: (duc / "task1_ref2.txt").write_text("one line\n"),
            r"input\.txt has 6 lines and .*task1_ref2\.txt has 1",
        ),
    ],
)
def test_a_folder_of_references_is_looked_at_before_training(tmp_path, spoil, said):
    duc = a_duc(tmp_path / "duc", news(6))
    spoil(duc)
    pairs = tiny_pairs(tmp_path, 100)
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        reproduce(str(pairs.path), tmp_path / "out", ["full"], [0], None, Plan(duc=duc), **SETTINGS)
    assert not (tmp_path / "out").exists()


def test_pairs_prepared_otherwise_are_refused(tmp_path):
    for name, seed in (("one.tsv", 0), ("two.tsv", 1)):
        write_tsv(tmp_path / name, news(100, seed=seed))

    def compare(name, **options):
        plan = Plan(sentences=0, **options)
        return reproduce(str(tmp_path / name), tmp_path / "out", ["joint"], [0], None, plan, **SETTINGS)

    assert compare("one.tsv", max_vocab=40)
    assert compare("one.tsv", max_vocab=40)
    for name, options, said in (
        ("two.tsv", {"max_vocab": 40}, "was made from one.tsv"),
        ("one.tsv", {"max_vocab": 50}, "was made with max_vocab 40, not 50"),
        ("one.tsv", {"max_vocab": 40, "source_words": True}, "was made with source_words False, not True"),
    ):
        with pytest.raises(ValueError, match=said):
            compare(name, **options)


def test_the_experiment_needs_no_command_line_and_no_tokenizer():
    program = (
        "import sys, coterie_lab.experiments.summarization.reproduce; "
        "assert not {'typer', 'nltk', 'rouge_score', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_command_prepares_the_pairs_itself(tmp_path):
    write_tsv(tmp_path / "news.tsv", news(100))
    settings = [f"--setting={name}={value}" for name, value in SETTINGS.items() if name != "head_options"]
    done = coterie(
        "reproduce", "summarization", tmp_path / "news.tsv", "--out", tmp_path / "out", "--heads", "joint", "--preset",
        "paper", "--max-vocab", "30", *settings,
    )  # fmt: skip
    assert done.exit_code == 0, done.exception
    assert "a vocabulary of 30" in (tmp_path / "out/report.md").read_text()
    done = coterie("reproduce", "summarization", "x", "--out", tmp_path / "no", "--heads", "fuller")
    assert "there is nothing called 'fuller'" in str(done.exception)
