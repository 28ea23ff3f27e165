"""`coterie reproduce`: stopped and repeated at will, every run is made once; the report says what the runs wrote."""

import json
import math
import statistics

import pytest

from coterie_lab.experiments.comparison import chosen
from coterie_lab.experiments.language.experiments import EXPERIMENTS
from coterie_lab.experiments.language.report import draw_paces, plainly
from coterie_lab.experiments.language.reproduce import reproduce
from coterie_lab.experiments.language.variants import VARIANTS
from coterie_lab.tasks.language.train import LanguageTask
from coterie_lab.training.logs import read_journal
from tests.command_line import coterie
from tests.corpora import SMALL, tiny_corpus, tiny_text
from tests.killing import ctrl_c

TINY = {**SMALL, "epochs": 1, "length": 20}
del TINY["head_options"]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Two heads, two seeds; stopped in the second run and repeated."""
    folder = tmp_path_factory.mktemp("reproduce")
    corpus = tiny_corpus(folder)
    arguments = (str(corpus.path), folder / "out", ["full", "k-1000"], [0, 1])
    changed = {**TINY, "head_options": {"reorganize_every": 5}, "evaluate_every": 7}
    organized = (str(corpus.path), folder / "out", ["self-organized"], [0, 1])
    with ctrl_c(LanguageTask, at=29):
        assert reproduce(*organized, **changed) is None
    finished = folder / "out/runs/self-organized-0"
    before = {path: path.read_bytes() for path in finished.glob("*.json*")}
    assert reproduce(*organized, **changed) is not None
    assert {path: path.read_bytes() for path in finished.glob("*.json*")} == before
    return folder / "out", reproduce(*arguments, **TINY), reproduce(*organized, **changed)


def test_the_report_says_what_the_runs_wrote(done):
    out, _, report = done
    row = report["rows"][0]
    assert report["seeds"] == [0, 1]
    for seed in range(2):
        log = read_journal(out / f"runs/self-organized-{seed}/log.jsonl")
        assert row["perplexity"][seed] == [record for record in log if record["event"] == "evaluate"][-1]["perplexity"]
        result = json.loads((out / f"runs/self-organized-{seed}/result.json").read_text())
        assert row["seconds"][seed] == result["training_seconds"]
    assert row["perplexity"][0] != row["perplexity"][1]
    text = (out / "report.md").read_text()
    mean, deviation = statistics.mean(row["perplexity"]), statistics.stdev(row["perplexity"])
    assert f"| self-organized (n = 2) | {mean:.2f} ± {deviation:.2f} |" in text
    assert "| 144.77 |" in text
    assert "importance sampling" in text
    for heading in ("Table 1", "Table 2", "Figure 1", "Table 3", "How it was made"):
        assert heading in text
    assert (report["random"], "These clusters are random" in text) == (False, False)
    assert "seed(s) 0, 1" in text
    saved = json.loads((out / "report.json").read_text())
    assert saved["rows"][0]["perplexity"] == row["perplexity"]
    assert saved["environments"][0]["versions"]["torch"] in text


def test_runs_of_other_seeds_that_are_there_are_counted_in(done):
    out, both, _ = done
    data = str(out.parent / "data")
    (out / "runs/full-2").mkdir()  # not finished
    report = reproduce(data, out, ["full", "k-1000"], [1], **TINY)
    (out / "runs/full-2").rmdir()
    assert report["seeds"] == [1]
    for row, before in zip(report["rows"], both["rows"], strict=True):
        assert row["perplexity"] == before["perplexity"][::-1]
    with pytest.raises(ValueError, match="was started with"):
        reproduce(data, out, ["full"], [3], **{**TINY, "hidden": 4, "embedding": 4})


def test_the_figure_has_its_data(done):
    out, _, report = done
    curves = report["curves"]
    assert curves["evaluated"][:2] == [7, 14]
    assert curves["reorganized"][:2] == [5, 10]
    for whole, cluster, inside in zip(
        curves["perplexity"], curves["cluster_perplexity"], curves["in_cluster_perplexity"], strict=True
    ):
        assert math.isclose(whole, cluster * inside, rel_tol=1e-6)
    assert (out / "figure1.png").read_bytes().startswith(b"\x89PNG")


def test_heads_without_clusters_are_reported_too(done):
    _, report, _ = done
    full, other = report["rows"]
    assert full["cluster_perplexity"] == []
    assert other["label"] == "K = 1,000 (clusters random: no reorganization yet)"  # the runs have fewer updates
    assert full["published_perplexity"] == 144.17
    assert len(other["seconds"]) == 2


def test_random_clusters_are_called_so_and_words_that_stand_alone_are_named(tmp_path):
    corpus = tiny_corpus(tmp_path)
    given = {**TINY, "head_options": {"own_words": 8, "reorganize_every": 1000}}
    report = reproduce(str(corpus.path), tmp_path / "out", ["self-organized"], [0], **given)
    text = (tmp_path / "out/report.md").read_text()
    assert report["random"]
    assert "These clusters are random: no reorganization yet." in text
    assert text.count("self-organized (clusters random: no reorganization yet)") == 2  # in both tables
    frequent = corpus.counts.argsort(descending=True, stable=True)[:8]
    assert report["alone"]["words"] == [corpus.words[word] for word in frequent.tolist()]
    assert report["alone"]["share"] == pytest.approx(float(corpus.counts[frequent].sum() / corpus.counts.sum()))
    assert f"8 words stand alone and make up {report['alone']['share']:.1%} of the text" in text


def test_words_that_are_markdown_are_shown_as_they_are():
    assert plainly("a|b *c* <unk> d_e") == r"a\|b \*c\* \<unk\> d\_e"


def test_another_text_than_the_one_prepared_is_refused(tmp_path):
    for name, seed in (("one.txt", 1), ("two.txt", 2)):
        (tmp_path / name).write_text(tiny_text(40_000, seed))
    arguments = (tmp_path / "out", ["full"], [0])
    assert reproduce(str(tmp_path / "one.txt"), *arguments, min_count=1, dev_chars=9000, **TINY)
    before = (tmp_path / "out/report.json").read_bytes()
    for other, said in (("two.txt", r"was made from one\.txt .*, not from two\.txt"), ("no.txt", "does not exist")):
        with pytest.raises((ValueError, FileNotFoundError), match=said):
            reproduce(str(tmp_path / other), *arguments, min_count=1, dev_chars=9000, **TINY)
    with pytest.raises(ValueError, match="was made with min_count 1, not 3"):
        reproduce(str(tmp_path / "one.txt"), *arguments, min_count=3, dev_chars=9000, **TINY)
    assert (tmp_path / "out/report.json").read_bytes() == before
    # That name is one text's: what was made of it needs no other.
    assert reproduce("text8", *arguments, min_count=1, dev_chars=9000, **TINY)
    assert reproduce(str(tmp_path / "one.txt"), *arguments, min_count=1, dev_chars=9000, **TINY)


def test_the_command_prepares_the_text_itself(tmp_path):
    (tmp_path / "text.txt").write_text(tiny_text(40_000))
    settings = [f"--setting={name}={value}" for name, value in {**TINY, "length": 60, "sequences": 32}.items()]
    done = coterie(
        "reproduce", "text8", tmp_path / "text.txt", "--out", tmp_path / "out", "--heads", "random-clusters", *settings
    )
    assert "development part" in str(done.exception)  # text8's split is too long for this text
    assert not (tmp_path / "out/data").exists()
    (tmp_path / "text.txt").write_text(tiny_text(170_000))
    done = coterie(
        "reproduce", "text8", tmp_path / "text.txt", "--out", tmp_path / "out", "--heads", "random-clusters", *settings
    )
    assert done.exit_code == 0, done.exception
    assert (tmp_path / "out/report.md").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("text9", "x"), "there is no experiment 'text9'"),
        (("text8", "x", "--heads", "fuller"), "there is nothing called 'fuller' to compare"),
        (("text8", "x", "--seeds", "one"), "--seeds takes whole numbers"),
        (("text8", "x", "--setting", "epochs"), "takes NAME=VALUE"),
        (("text8", "x", "--setting", "head=full"), "--setting head: every row has its own"),
        (("text8", "x", "--setting", "seed=3"), "--setting seed"),
        (("text8", "x", "--setting", "preset=paper"), "--setting preset"),
        (("text8", "x", "--epochs", "2", "--setting", "epochs=3"), "--setting epochs"),
        (("text8", "x", "--heads", "full,"), "there is nothing called '' to compare"),
        (("text8", "x", "--heads", "full,full"), "every head and every seed once"),
        (("text8", "x", "--seeds", "0,0"), "every head and every seed once"),
        (("summarization", "x", "--heads", "full,"), "there is nothing called '' to compare"),
        (("text8", "x", "--duc", "y"), "--duc is an option of `reproduce summarization`; text8 has no use for it"),
        (("generated", "--preset", "paper"), "--preset is an option of `reproduce summarization`"),
        (("summarization", "x", "--duc", "nope"), "should be DUC-2004's folder"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(tmp_path, arguments, said):
    done = coterie("reproduce", *arguments, "--out", tmp_path / "out")
    assert said in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_every_variant_has_settings():
    for variant in chosen(list(VARIANTS), VARIANTS).values():
        assert variant.settings(epochs=3).epochs == 3


def test_a_text_in_three_files(tmp_path):
    folder = tmp_path / "wikitext-2"
    folder.mkdir()
    for part in ("train", "valid", "test"):
        (folder / f"wiki.{part}.tokens").write_text(f" = {part} = \n a b a <unk> b \n" * 40)
    settings = {**TINY, "sequences": 2, "epochs": 1}
    report = reproduce(
        str(folder), tmp_path / "out", ["self-organized"], [0], experiment=EXPERIMENTS["wikitext2"], **settings
    )
    assert report["corpus"]["train_words"] == 40 * 10
    assert "published" not in (tmp_path / "out/report.md").read_text().lower()
    stored = json.loads((tmp_path / "out/runs/self-organized-0/config.json").read_text())["settings"]
    assert (stored["tied"], stored["dropout"]) == (True, 0.5)
    (folder / "wiki.valid.tokens").unlink()
    with pytest.raises(
        ValueError, match=r"one file each for train, valid and test.*found wiki.test.tokens, wiki.train"
    ):
        reproduce(str(folder), tmp_path / "other", ["full"], [0], experiment=EXPERIMENTS["wikitext2"], **settings)


@pytest.mark.parametrize("last", [[math.nan, math.inf], [math.nan, 200.0]])
def test_runs_that_came_to_nothing_are_drawn_too(tmp_path, last):
    pytest.importorskip("matplotlib")
    paces = [{"label": "run", "seconds": [1.0, 2.0], "perplexity": [300.0, perplexity]} for perplexity in last]
    draw_paces(paces, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").exists()


def test_what_is_made_beforehand_is_part_of_the_time(done):
    out, report, _ = done
    for row, found in zip(report["rows"], report["paces"], strict=True):
        log = read_journal(out / "runs" / f"{row['name']}-0" / "log.jsonl")
        (built,) = (record for record in log if record["event"] == "built")
        looks = [record["seconds"] for record in log if record["event"] == "evaluate"]
        assert built["seconds"] == found["building"] > 0
        assert found["seconds"] == [built["seconds"] + seconds for seconds in looks]
        assert found["label"] == row["label"]
        assert found["perplexity"][-1] == row["perplexity"][0]
    assert (out / "figure2.png").read_bytes().startswith(b"\x89PNG")


def test_a_text_has_its_own_way_to_reorganize_as_printed():
    often = {
        name: experiment.settings_of(VARIANTS["paper"]).head_options.get("reorganize_every")
        for name, experiment in EXPERIMENTS.items()
        if name != "transformer"
    }
    assert often == {"text8": None, "wikitext2": 250, "generated": 100}
    for experiment in EXPERIMENTS.values():
        assert "reorganize_every" not in experiment.settings_of(VARIANTS["self-organized"]).head_options
    assert EXPERIMENTS["generated"].settings_of(VARIANTS["k-4000"]).head_options["reorganize_every"] == 4000
