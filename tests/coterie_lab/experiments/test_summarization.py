"""`coterie reproduce summarization`: rows have what they say, and a report says what its runs wrote."""

import json
import subprocess
import sys

import pytest

from coterie_lab.experiments.summarization.reproduce import Plan, reproduce
from coterie_lab.experiments.summarization.variants import VARIANTS
from coterie_lab.scoring import rouge
from coterie_lab.scoring.bootstrap import difference
from coterie_lab.tasks.language.trained import Trained as TrainedLanguageModel
from coterie_lab.tasks.summarization.clusters import load
from coterie_lab.tasks.summarization.train import SummaryTask
from coterie_lab.tasks.summarization.trained import Trained
from tests.command_line import coterie
from tests.killing import ctrl_c
from tests.pairs import SMALL, news, tiny_pairs, write_tsv

CLUSTERED = ["self-organized", "titles", "moving", "joint"]
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
    plan = Plan(duc=duc, sentences=4, batch=4, language_settings=SMALL_LM)
    arguments = (str(pairs.path), folder / "out", ["full", "self-organized"], [0, 1], None, plan)
    with ctrl_c(SummaryTask, at=9):
        assert reproduce(*arguments, **SETTINGS) is None
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
    every = [VARIANTS[name].settings("best").head_options.get("reorganize_every", "auto") for name in CLUSTERED]
    assert every == [None, None, "auto", "auto"]
    # What is given for all of them leaves a row what it is.
    moving = VARIANTS["moving"].settings("best", head_options={"label_smoothing": 0.2})
    assert moving.head_options == {"projection": False, "label_smoothing": 0.2, "reorganize_every": "auto"}


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
