"""`coterie summarize` and `coterie reproduce summarization` from end to end on invented news, and mistakes."""

import json
import os
import signal
import subprocess
import sys

import pytest

from coterie.lm.trained import Trained as TrainedLanguageModel
from coterie.summarization import rouge
from coterie.summarization.bootstrap import difference
from coterie.summarization.generate import Decoding, summarize
from coterie.summarization.reproduce import Plan, reproduce
from coterie.summarization.train import SummaryTask
from coterie.summarization.trained import Trained
from tests.pairs import SMALL, news, tiny_pairs, write_gigaword, write_tsv
from tests.test_lm_commands import coterie

ARGUMENTS = ["--hidden=16", "--embedding=16", "--batch=32", "--epochs=1", "--device=cpu"]
TITLES = ["--hidden=8", "--embedding=8", "--sequences=4", "--epochs=1", "--device=cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Prepared, clustered and trained through the command line."""
    folder = tmp_path_factory.mktemp("summarize")
    write_tsv(folder / "news.tsv", [*news(250), ("unrelated words stand here alone", "nothing shared with that")])
    prepared = coterie("summarize", "prepare", folder / "news.tsv", folder / "data", "--valid", "20", "--test", "20")
    assert prepared.exit_code == 0, prepared.exception
    assert "no word that carries meaning in common" in prepared.stdout
    assert "251 pairs read" in prepared.stdout
    learned = coterie("summarize", "cluster", folder / "data", "--out", folder / "titles", *TITLES)
    assert learned.exit_code == 0, learned.exception
    trained = coterie(
        "summarize", "train", folder / "data", "--out", folder / "run", "--partition", folder / "titles", *ARGUMENTS
    )
    assert trained.exit_code == 0, trained.exception
    assert "perplexity" in trained.stdout
    return folder


def test_clusters_are_the_language_models(folder):
    seats = TrainedLanguageModel.open(folder / "titles", "cpu").organized.partition.cluster_of
    assert Trained.open(folder / "run", "cpu").model.head.partition.cluster_of.tolist() == seats.tolist()
    assert coterie("clusters", folder / "titles", "--n", "3").exit_code == 0


def test_generate_writes_a_title_for_each_line(folder):
    lines = [article for article, _ in news(5, seed=7)]
    (folder / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    trained = Trained.open(folder / "run", "cpu")
    expected = list(summarize(trained, lines, Decoding()))
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
    assert coterie("summarize", "cluster", folder / "data", "--out", folder / "titles", "--resume").exit_code == 0


def test_a_page_shows_the_summarizer_beside_the_language_model(folder, tmp_path):
    done = coterie("report", folder / "run", folder / "titles", "--out", tmp_path / "page.html")
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
        (("train", "{data}", "--out", "{new}", "--head", "full", "--partition", "{titles}"), "takes no clusters"),
        (("train", "{data}", "--out", "{new}", "--hidden", "8"), "tied weights need an embedding as wide"),
        (("train", "{nothing}", "--out", "{new}"), "coterie summarize prepare"),
        (("train", "{titles}", "--out", "{new}"), "is not whole"),
        (("cluster", "{data}", "--out", "{titles}", "--sequences", "4"), "holds a run"),
        (("cluster", "{data}", "--out", "{new}", "--sequences", "5000"), "too short for 5000 sequences"),
        (("cluster", "{data}", "--out", "{titles}", "--resume", "--force"), "give one of them"),
        (("generate", "{nothing}"), "is not a run"),
        (("generate", "{titles}"), 'not of a run of kind "summarizer"'),
        (("prepare", "{nothing}", "{new}"), "does not exist"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(folder, tmp_path, arguments, said):
    names = {"nothing": tmp_path / "no", "new": tmp_path / "new"}
    names |= {name: folder / name for name in ("data", "run", "titles")}
    done = coterie("summarize", *(argument.format(**names) for argument in arguments))
    assert done.exit_code == 1
    assert said in str(done.exception)
    assert not (tmp_path / "new").exists()


# -- the experiment -----------------------------------------------------------------------------------------------

SETTINGS = {**SMALL, "epochs": 1, "hidden": 16, "embedding": 16, "batch": 64}
SMALL_LM = {"hidden": 8, "embedding": 8, "sequences": 4, "epochs": 1}


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
    plan = Plan(duc=duc, sentences=4, batch=4, title_settings=SMALL_LM)
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


def test_the_report_says_what_the_runs_wrote(compared):
    pairs, out, report = compared
    references = pairs.text("test", "title")
    full, ours = report.rows
    per_item = {}
    for row in (full, ours):
        found = [
            rouge.full_length((out / f"runs/{row.name}-{seed}/test.titles.txt").read_text().splitlines(), references)
            for seed in (0, 1)
        ]
        per_item[row.name] = sum(scores.rouge1 for scores in found) / 2
        assert row.test.means["rouge1"] == pytest.approx([100 * scores.rouge1.mean() for scores in found])
        result = json.loads((out / f"runs/{row.name}-1/result.json").read_text())
        assert row.seconds[1] == result["training_seconds"]
    expected = difference(per_item["self-organized"], per_item["full"])
    assert report.differences["test"]["rouge1"] == pytest.approx([100 * value for value in expected])
    lead = [" ".join(line.split()[:8]) for line in pairs.text("test", "article")]
    assert report.lead.means["rouge2"] == pytest.approx([100 * rouge.full_length(lead, references).rouge2.mean()])
    assert [(speed.batch, speed.equal) for speed in report.speeds] == [(1, None), (16, None), (1, 4), (16, 4)]
    text = (out / "report.md").read_text()
    for wanted in ("Table 4", "Table 5", "Table 6", "TOPIARY", "words-lvt5k-1sent", "published, on other data",
                   "Examples", "first 8 words", "How it was made", "| 31.95 |", "63 |"):  # fmt: skip
        assert wanted in text, wanted
    assert f"- *reference*: {report.examples[0]['reference']}" in text
    assert set(report.examples[0]) == {"sentence", "reference", "full", "self-organized"}
    saved = json.loads((out / "report.json").read_text())
    assert saved["rows"][1]["duc"]["means"] == ours.duc.means


def test_other_settings_are_refused_and_without_duc_it_says_so(compared):
    pairs, out, _ = compared
    arguments = (str(pairs.path), out, ["full"], [0])
    with pytest.raises(ValueError, match="started with embedding 16, not 24"):
        reproduce(*arguments, **{**SETTINGS, "hidden": 24, "embedding": 24})
    report = reproduce(*arguments, **SETTINGS)
    assert report.rows[0].duc is None
    assert "DUC-2004 was not given" in (out / "report.md").read_text()
    assert not report.differences
    assert [speed.name for speed in report.speeds] == ["full softmax"] * 2


def test_the_experiment_needs_no_command_line_and_no_tokenizer():
    program = (
        "import sys, coterie.summarization.reproduce; "
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
