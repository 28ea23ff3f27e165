"""`coterie reproduce transformer`: all heads at equal updates, and ratios that are right on courses made up by hand."""

import json
import math
import shutil

import pytest

from coterie_lab.experiments.language.courses import Course, course, ratios, seconds_to
from coterie_lab.experiments.language.equal_updates import against, fastest
from coterie_lab.experiments.language.experiments import EXPERIMENTS
from coterie_lab.experiments.language.reproduce import reproduce
from coterie_lab.experiments.language.variants import VARIANTS
from coterie_lab.tasks.language.train import LanguageTask
from coterie_lab.training.logs import read_journal
from tests.command_line import coterie
from tests.corpora import tiny_corpus, tiny_text
from tests.killing import ctrl_c

TINY = {
    "hidden": 16, "layers": 2, "attention_heads": 4, "sequences": 8, "length": 12, "warmup": 4, "learning_rate": 0.01,
    "dropout": 0.0,
}  # fmt: skip
TRANSFORMER = EXPERIMENTS["transformer"]
GIVEN = {**TINY, "updates": 24, "evaluate_every": 8, "device": "cpu"}

FULL = Course([250, 500, 750, 1000], [400.0, 300.0, 220.0, 200.0], [10.0, 20.0, 30.0, 40.0], memory=800)


# -- the ratios ---------------------------------------------------------------------------------------------------


def test_ratios_of_courses_made_up_by_hand():
    # Evaluated where the other is, and at 600 directly after a reorganisation, where the other is not.
    ours = Course([250, 500, 600, 750, 1000], [420.0, 290.0, 500.0, 240.0, 190.0], [4, 8, 10, 12, 16], memory=200)
    found = ratios(ours, FULL)
    assert found["final"] == 190 / 200
    assert (found["largest"], found["largest_at"]) == (240 / 220, 750)
    assert found["compared"] == 4
    assert found["memory"] == 4.0
    # From 240 at 12 seconds to 190 at 16 it passes 200, evenly in the logarithm.
    assert found["seconds"] == pytest.approx(40 / (12 + 4 * math.log(240 / 200) / math.log(240 / 190)))
    same = ratios(FULL, FULL)
    assert (same["final"], same["largest"], same["seconds"], same["memory"]) == (1, 1, 1, 1)
    worse = ratios(Course([1000], [201.0], [5.0]), FULL)
    assert (worse["seconds"], worse["memory"]) == (None, None)


def test_seconds_to_a_perplexity():
    assert seconds_to(FULL, 500.0) == 10
    assert seconds_to(FULL, 400.0) == 10
    assert seconds_to(FULL, 300.0) == pytest.approx(20)
    assert seconds_to(FULL, 200.0) == pytest.approx(40)
    assert seconds_to(FULL, 199.0) is None
    jumped = Course([1, 2, 3, 4], [300.0, 250.0, 400.0, 200.0], [1.0, 2.0, 3.0, 4.0])
    assert seconds_to(jumped, 250.0) == 2  # the first time, whatever a reorganisation does later
    assert 3 < seconds_to(jumped, 240.0) < 4


def test_seeds_are_compared_with_themselves_and_with_the_fastest():
    worse = Course(FULL.updates, [2 * value for value in FULL.perplexity], FULL.seconds)
    found = against({0: worse, 1: FULL, 7: FULL}, {1: worse, 0: FULL})
    assert found["final"] == [2, 0.5]
    assert against({3: FULL}, {0: FULL}) == {}
    rows = [("self-organized", [1.0]), ("full", [9.0, 2.0, 9.0]), ("full-compiled", [3.0]), ("adaptive", [2.0])]
    figures = [{"name": name, "seconds": seconds} for name, seconds in rows]
    assert fastest(figures) == "full-compiled"
    assert fastest(figures[:1]) is None


# -- a comparison -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Three heads; stopped in the second run and repeated. The head's schedule is quick for so small a run."""
    folder = tmp_path_factory.mktemp("transformer")
    corpus = tiny_corpus(folder)
    arguments = (str(corpus.path), folder / "out", ["full", "adaptive", "self-organized"], [0])
    given = {**GIVEN, "experiment": TRANSFORMER}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TRANSFORMER.head_options, "self-organized", {"reorganize_every": 5})
        with ctrl_c(LanguageTask, at=33):
            assert reproduce(*arguments, **given) is None
        before = (folder / "out/runs/self-organized-0/log.jsonl").read_bytes()
        report = reproduce(*arguments, **given)
    assert (folder / "out/runs/self-organized-0/log.jsonl").read_bytes() == before
    return folder / "out", report


def test_all_are_evaluated_at_the_same_updates(compared):
    out, report = compared
    assert [row["name"] for row in report["rows"]] == ["self-organized", "full", "adaptive"]  # it goes first
    moved = [record["step"] for record in read_journal(out / "runs/self-organized-0/reorganizations.jsonl")]
    assert moved == [5, 10, 15, 20]
    for name in ("self-organized", "full", "adaptive"):
        found = course(out / f"runs/{name}-0")
        assert found.updates == [5, 8, 10, 15, 16, 20, 24]
        assert found.seconds == sorted(found.seconds)
        log = read_journal(out / f"runs/{name}-0/log.jsonl")
        losses = {r["step"]: r["perplexity"] for r in log if r["event"] in ("after", "aside", "evaluate")}
        assert found.perplexity == list(losses.values())
        assert [jump.update for jump in found.jumps] == (moved if name == "self-organized" else [])
    settings = json.loads((out / "runs/full-0/config.json").read_text())["settings"]
    assert settings["evaluate_at"] == "5,10,15,20"
    assert (settings["tied"], settings["head_options"], settings["length"]) == (True, {}, 12)


def test_the_report_says_what_the_runs_wrote(compared):
    out, report = compared
    ours, full, _ = report["rows"]
    found = {name: course(out / f"runs/{name}-0") for name in ("self-organized", "full")}
    expected = ratios(found["self-organized"], found["full"])
    assert report["against"] == "full"
    assert {name: [value] for name, value in expected.items()} == ours["ratios"]
    assert full["ratios"]["final"] == [1.0]
    assert ours["perplexity"] == [found["self-organized"].perplexity[-1]]
    assert (report["updates"], ours["peak_memory"]) == (24, [None])
    text = (out / "report.md").read_text()
    assert (
        f"| self-organized | {expected['final']:.4f} | {expected['largest']:.4f} | {expected['largest_at']} |" in text
    )
    jump = found["self-organized"].jumps[0]
    assert f"| 5 | {jump.share_of_mass:.1%} | {jump.before:.2f} | {jump.after:.2f} |" in text
    assert f"| 24 | {ours['perplexity'][0]:.2f} | {full['perplexity'][0]:.2f} |" in text
    for figure in ("figure1.png", "figure2.png"):
        assert (out / figure).read_bytes().startswith(b"\x89PNG")
    saved = json.loads((out / "report.json").read_text())
    assert saved["courses"]["full"]["0"]["perplexity"] == found["full"].perplexity


def test_logs_of_finished_runs_are_enough_to_go_on_elsewhere(compared, tmp_path, monkeypatch):
    out, report = compared
    kept = shutil.ignore_patterns("*.pt", "moves.jsonl", "vocabulary.json", "tensorboard")
    shutil.copytree(out / "runs", tmp_path / "out/runs", ignore=kept)
    monkeypatch.setitem(TRANSFORMER.head_options, "self-organized", {"reorganize_every": 5})
    names = ["self-organized", "full", "random-clusters"]
    again = reproduce(str(out.parent / "data"), tmp_path / "out", names, [0], experiment=TRANSFORMER, **GIVEN)
    assert again["rows"][:2] == report["rows"][:2]
    assert course(tmp_path / "out/runs/random-clusters-0").updates == report["courses"]["full"]["0"]["updates"]


def test_the_command_prepares_as_many_words_as_asked_for(tmp_path):
    (tmp_path / "text.txt").write_text(tiny_text(170_000))
    settings = [f"--setting={name}={value}" for name, value in TINY.items()]
    arguments = ("reproduce", "transformer", tmp_path / "text.txt", "--out", tmp_path / "out")
    more = ("--heads=random-clusters", "--updates=2", "--device=cpu", *settings)
    done = coterie(*arguments, "--max-vocab", "99", *more)
    assert done.exit_code == 0, done.exception
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert (report["corpus"]["vocabulary"], report["against"]) == (99, None)  # nothing to compare with
    assert "was made with min_count 1, not 11" in str(coterie(*arguments, *more).exception)
    again = ("reproduce", "transformer", tmp_path / "out/data", "--out", tmp_path / "other", "--max-vocab", "50")
    assert "is prepared already: leave out --max-vocab" in str(coterie(*again, *more).exception)
    other = coterie("reproduce", "text8", tmp_path / "text.txt", "--out", tmp_path / "other", "--max-vocab", "50")
    assert "--max-vocab is an option of `reproduce" in str(other.exception)
    both = coterie(*arguments, "--epochs", "2", *more)
    assert "--epochs and --updates both say how long" in str(both.exception)


def test_the_usual_comparison_sets_nothing_of_our_head():
    for name in TRANSFORMER.heads.split(","):
        settings = TRANSFORMER.settings_of(VARIANTS[name], seed=0)
        assert settings.tied == (name != "adaptive")
        assert settings.head_options == ({"biases": "random"} if "random" in name else {})
        assert (settings.optimizer, settings.projection_factor, settings.settle) == ("adamw", 1.0, 1.0)
