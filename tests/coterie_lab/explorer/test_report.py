"""`coterie report`: what the page and the figures hold is what the runs wrote."""

import base64
import gzip
import json
import re
from importlib.metadata import version

import numpy as np
import pytest
import torch

from coterie import SelfOrganizedSoftmax
from coterie_lab.explorer import explorer, treemap
from coterie_lab.explorer.collect import Content, Curves, _facts, collect, names
from coterie_lab.explorer.explorer import Organized, history, thinned
from coterie_lab.explorer.page import build, finite
from coterie_lab.tasks.language.train import train
from coterie_lab.tasks.language.trained import Trained
from coterie_lab.training.moves import History, Move, partitions, read_moves
from coterie_lab.training.run import Run
from tests.command_line import coterie
from tests.corpora import small, tiny_corpus
from tests.hostile import WORDS
from tests.layers import WIDTH


@pytest.fixture(scope="module")
def full_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("full")
    train(tiny_corpus(folder), folder / "full", small(head="full", head_options={}, epochs=1))
    return folder / "full"


def held(page, name):
    """What an element of the page holds."""
    found = re.search(rf'<script type="application/(json|gzip)" id="{name}">(.*?)</script>', page, re.S)
    if found is None:
        return None
    return json.loads(found[2] if found[1] == "json" else gzip.decompress(base64.b64decode(found[2])))


def test_the_page_holds_what_the_run_wrote(run):
    page = build(collect([run]))
    summary = held(page, "summary")["runs"][0]
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    looks = [record for record in log if record["event"] == "evaluate"]
    assert summary["curves"]["perplexity"] == [record["perplexity"] for record in looks]
    assert summary["facts"]["perplexity"] == json.loads((run / "result.json").read_text())["best"]["perplexity"]
    assert summary["settings"] == json.loads((run / "config.json").read_text())["settings"]
    assert summary["environment"]["versions"]["torch"] == version("torch")

    trained = Trained.open(run, "cpu")
    model = held(page, "explorer-0")
    assert model["words"] == trained.words
    assert set(WORDS) <= set(model["words"])
    assert model["counts"] == trained.counts.tolist()
    assert model["clusterOf"] == trained.organized.partition.cluster_of.tolist()
    assert not model["random"]
    alone = [word for word, cluster in enumerate(model["clusterOf"]) if cluster == model["alone"]]
    assert alone == trained.organized.partition.own.tolist()
    assert summary["facts"]["alone"] == len(alone) == 8
    for word in alone:
        assert set(model["neighbours"][8 * word : 8 * word + 8]) == {-1}
        assert set(model["nextBest"][3 * word : 3 * word + 3]) == {-1}
    for word in set(range(len(trained.words))) - set(alone):
        members = trained.organized.partition.members(model["clusterOf"][word]).tolist()
        near = [members[place] for place in model["neighbours"][8 * word : 8 * word + 8] if place >= 0]
        assert len(near) == min(8, len(members) - 1)
        assert word not in near
        assert model["clusterOf"][word] not in model["nextBest"][3 * word : 3 * word + 3]
    for cluster in model["clusters"]:
        assert {model["clusterOf"][word] for word in cluster["typical"]} == {cluster["number"]}

    moved = held(page, "history-0")
    now = np.array(moved["start"]["clusters"])
    for move in moved["moves"]:
        now[np.cumsum(move["words"])] = move["clusters"]
    assert now.tolist() == model["clusterOf"]


def test_html_cannot_take_the_data_for_anything_else(run):
    page = build(collect([run]))
    # Bokeh's two scripts, ours, the summary, the words and their moves, each closed once; nothing else.
    assert page.count("<script") - page.count("<script>alert") == page.count("</script>") == 6
    assert "alert(4)>run" not in page.split("<title>")[0]
    assert "<b onclick" not in page
    title = page.split("<title>")[1].split("</title>")[0]
    assert "&lt;b onclick" in title
    content = Content(name="\u2028</script>", head="x", curves=Curves(perplexity=[float("inf")], evaluated=[1]))
    summary = held(build([content]), "summary")["runs"][0]
    assert summary["name"] == content.name
    assert summary["curves"]["perplexity"] == [None]
    assert finite({"a": [1.0, float("nan")]}) == {"a": [1.0, None]}


def test_the_policy_names_the_scripts_and_forbids_the_rest(run):
    contents = collect([run])
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', build(contents))[1]
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert policy.count("'sha256-") == 3
    assert "unsafe-eval" not in policy
    assert "script-src 'unsafe-inline'" not in policy
    assert "connect-src 'self'" in build(contents, live="language model")


def test_other_heads_and_runs_without_a_model_have_a_page_without_explorer(full_run, tmp_path):
    page = build(collect([full_run]))
    summary = held(page, "summary")["runs"][0]
    assert summary["curves"]["cluster_perplexity"] == []
    assert summary["facts"]["perplexity"] > 1
    assert held(page, "explorer-0") is None
    begun = Run.create(tmp_path / "begun", "language model", {"settings": {"head": "full"}, "corpus": {}}, False)
    page = build(collect([begun.path]))
    assert held(page, "summary")["runs"][0]["facts"] == {"finished": False}


def test_the_command_writes_the_page_and_the_figures(run, full_run, tmp_path):
    done = coterie("report", run, full_run, "--out", tmp_path / "a/page.html", "--figures", tmp_path / "figures")
    assert done.exit_code == 0, done.exception
    page = (tmp_path / "a/page.html").read_text()
    assert (tmp_path / "a/page.html").as_uri() in done.stdout
    assert [one["name"] for one in held(page, "summary")["runs"]] == [run.name, "full"]
    written = sorted(path.name for path in (tmp_path / "figures").iterdir())
    stems = ("comparison", "full-figure1", f"{run.name}-figure1", f"{run.name}-map")
    assert written == sorted(f"{stem}.{kind}" for stem in stems for kind in ("png", "svg"))
    for path in (tmp_path / "figures").iterdir():
        start = path.read_bytes()[:200]
        assert start.startswith(b"\x89PNG") if path.suffix == ".png" else b"<svg" in path.read_bytes()[:1000]
    drawn = (tmp_path / "figures" / f"{run.name}-map.svg").read_text()
    assert "<script>" not in drawn
    curves = (tmp_path / "figures" / f"{run.name}-figure1.svg").read_text()
    assert ">inside the cluster<" in curves
    assert "mathdefault" not in curves  # words with a $ stay as they are, and so do the numbers of the axes
    before = {path: path.read_bytes() for path in (tmp_path / "figures").glob("*.svg")}
    coterie("report", run, full_run, "--out", tmp_path / "a/page.html", "--figures", tmp_path / "figures")
    assert {path: path.read_bytes() for path in (tmp_path / "figures").glob("*.svg")} == before


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("{nothing}",), "is not a run"),
        (("{run}", "{run}"), "named twice"),
        (("{strange}",), "not of a run that can be shown: its kind is 'a poem'"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(run, tmp_path, given, said):
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange/config.json").write_text('{"format": "coterie-run", "version": 3, "kind": "a poem"}')
    folders = {"run": run, "nothing": tmp_path / "no", "strange": tmp_path / "strange"}
    done = coterie("report", *(one.format(**folders) for one in given), "--out", tmp_path / "page.html")
    assert said in str(done.exception)
    assert not (tmp_path / "page.html").exists()


def test_runs_are_named_as_shortly_as_tells_them_apart(tmp_path):
    assert names([tmp_path / "a/x", tmp_path / "b/y"]) == ["x", "y"]
    assert names([tmp_path / "a/x", tmp_path / "b/x"]) == ["a/x", "b/x"]


# -- the map ------------------------------------------------------------------------------------------------------


def test_every_cluster_has_its_area_and_none_overlap():
    generator = np.random.default_rng(0)
    areas, places = generator.exponential(size=50), generator.normal(size=(50, 2))
    found = treemap.rectangles(areas, places, 16.0, 10.0)
    assert found[:, 2] * found[:, 3] == pytest.approx(areas / areas.sum() * 160)
    left, top, right, bottom = found[:, 0], found[:, 1], found[:, 0] + found[:, 2], found[:, 1] + found[:, 3]
    assert min(left.min(), top.min()) >= 0
    assert (right.max(), bottom.max()) == pytest.approx((16, 10))
    for a in range(50):
        for b in range(a):
            wide = min(right[a], right[b]) - max(left[a], left[b])
            high = min(bottom[a], bottom[b]) - max(top[a], top[b])
            assert min(wide, high) < 1e-9
    assert (treemap.rectangles(np.zeros(3), places[:3], 1, 1)[:, 2:] > 0).all()


def test_like_clusters_lie_together():
    generator = np.random.default_rng(0)
    centres = np.repeat(generator.normal(size=(4, 12)), 10, axis=0)
    places = treemap.positions(centres + 0.05 * generator.normal(size=(40, 12)))
    assert np.abs(places).max() == pytest.approx(1)
    distance = np.linalg.norm(places[:, None] - places[None], axis=-1)
    same = np.arange(40)[:, None] // 10 == np.arange(40)[None] // 10
    assert distance[same].max() < distance[~same].min()
    boxes = treemap.rectangles(np.ones(40), places, 1.0, 1.0)
    middle = boxes[:, :2] + boxes[:, 2:] / 2
    apart = np.linalg.norm(middle[:, None] - middle[None], axis=-1)
    assert apart[same].mean() < 0.6 * apart[~same].mean()


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9])
def test_few_clusters_and_equal_ones_have_places_too(n):
    for vectors in (np.random.default_rng(0).normal(size=(n, 3)), np.ones((n, 3)), np.full((n, 1), np.nan)):
        places = treemap.positions(vectors)
        assert places.shape == (n, 2)
        assert np.isfinite(places).all()


# -- who moved when -----------------------------------------------------------------------------------------------


def test_a_long_history_is_thinned_and_ends_the_same():
    generator = torch.Generator().manual_seed(0)
    followed = History(torch.zeros(100, dtype=torch.int64))
    for step in range(1, 12):
        followed.add(10 * step, torch.randint(0, 5, (100,), generator=generator))
    kept = thinned(followed.moves, 300)
    assert 2 <= len(kept) < len(followed.moves)
    assert sum(move.words.size for move in kept[1:]) <= 300
    assert kept[-1].step == 110
    *_, (last, before) = partitions(kept)
    before[last.words] = last.clusters
    assert np.array_equal(before, followed.last)
    assert thinned(followed.moves, 10**6) == followed.moves
    assert len(thinned(followed.moves, 0)) == 2


def test_words_that_never_could_move_have_no_history(full_run):
    assert history([]) is None
    assert history([Move(0, np.arange(3, dtype=np.int32), np.zeros(3, dtype=np.int32))]) is None
    assert read_moves(full_run / "moves.jsonl") == []


def test_a_fixed_partition_with_empty_clusters_is_explored():
    head = SelfOrganizedSoftmax(WIDTH, 30, torch.arange(1, 31), n_clusters=6, reorganize_every=None)
    organized = Organized(head, [str(word) for word in range(30)], torch.arange(1, 31), [])
    assert explorer.explore(organized)["random"]
    head.partition.assign_(torch.arange(30) % 2 * 3)
    found = explorer.explore(organized)
    assert not found["random"]
    assert [cluster["number"] for cluster in found["clusters"]] == [0, 3]
    assert found["clusters"][1]["typical"][0] == 29
    assert set(found["nextBest"]) == {-1}


def test_building_a_model_is_no_training(tmp_path):
    log = Run(tmp_path).log
    log.write_text(json.dumps({"event": "built", "step": 0, "seconds": 64.0}) + "\n")
    assert _facts(Run(tmp_path), {}) == {"finished": False}
    with log.open("a") as file:
        file.write(json.dumps({"event": "train", "step": 50, "seconds": 2.0, "words_per_second": 7.0}) + "\n")
    assert _facts(Run(tmp_path), {}) == {"finished": False, "updates": 50, "seconds": 2.0, "words_per_second": 7.0}
