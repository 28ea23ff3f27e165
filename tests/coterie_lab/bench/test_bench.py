"""The bench: right sums, honest tables, and a run from the command line. No test asserts on a clock."""

import json
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch

from coterie_lab.bench import clusters, heads, report, search, timing
from coterie_lab.bench.heads import Contest, Row
from coterie_lab.bench.methods import build
from coterie_lab.bench.shapes import Machine, Shape, zipf_counts, zipf_text
from coterie_lab.bench.timing import in_loops, in_turns
from tests.command_line import coterie

CPU = torch.device("cpu")


def test_the_floor_is_bytes_and_operations_over_rates():
    machine = Machine(bytes_per_second=4e12, operations_per_second=800e12)
    # Worked out by hand: 3 · V · D numbers of two bytes, 3 · 2 · (T + C) · D² operations with C = 368 and 1,000.
    assert machine.floor_ms(Shape(131_072, 1_024, 8_192), torch.bfloat16) == pytest.approx(0.20133 + 0.06732, abs=1e-5)
    assert machine.floor_ms(Shape(1_000_000, 256, 4_096), torch.bfloat16) == pytest.approx(0.384 + 0.002505, abs=1e-5)
    # Fewer tokens than clusters: both projections are of the tokens.
    assert machine.floor_ms(Shape(1_000_000, 256, 10), torch.bfloat16) == pytest.approx(0.384 + 9.83e-6, abs=1e-7)


def test_targets_follow_zipfs_law():
    share = torch.bincount(zipf_text(1000, 20_000), minlength=1000).double() / 20_000
    law = zipf_counts(1000).double() / zipf_counts(1000).sum()
    assert torch.allclose(share[:10], law[:10], atol=0.01)


REGISTERED = ("importance", "nce", "hsm-similarity", "hsm-huffman", "differentiated", "cnn")


@pytest.mark.parametrize("name", ["self-organized", "full", "full-chunked", "adaptive", *REGISTERED])
def test_a_step_gives_every_gradient(name):
    contest = Contest(Shape(5_000, 16, 64), [name], CPU, torch.float32)
    if not contest.methods:
        pytest.skip(f"this torch has no {name}")
    method = contest.methods[name]
    found = contest.step(method)()
    assert len(found) == 1 + len(list(method.module.parameters()))
    assert all(bool(gradient.isfinite().all()) for gradient in found)
    if topk := contest.topk(2, method):
        topk()


def test_a_head_of_the_registry_can_be_timed_as_a_graph():
    assert build("importance-graph", Shape(100, 8, 8), CPU, torch.float32).graph
    assert not build("importance", Shape(100, 8, 8), CPU, torch.float32).graph


def a_row(method, words, step):
    return Row(method, Shape(words, 8, 8), forward=step / 3, step=step, step_low=step, step_high=step, floor=1.0)


def test_several_take_turns():
    calls = []
    timings = in_turns({name: partial(calls.append, name) for name in "ab"}, CPU, seconds=0.0)
    assert "".join(calls) == "aaaabbbb" + "aabb" * 5  # of two calls in a turn the first is not counted
    assert [timing.repeats for timing in timings.values()] == [5, 5]
    assert all(timing.least <= timing.low <= timing.ms <= timing.high for timing in timings.values())


def test_a_loop_is_timed_until_it_is_launched_and_until_it_is_done(monkeypatch):
    monkeypatch.setattr(timing, "wait_for", lambda device: clock.append(clock[-1] + 60))
    clock, calls = [0.0], []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[-1])
    found = in_loops({name: partial(step, clock, calls, name) for name in "ab"}, CPU, calls=2, rounds=3)
    assert "".join(calls) == "aabb" * 3
    assert found["a"] == timing.Loop(host=1000, wall=31_000)  # a second to launch each, and a minute for both


def step(clock, calls, name):
    clock.append(clock[-1] + 1)
    calls.append(name)


@pytest.fixture
def turns(monkeypatch):
    """Which methods were timed together."""
    seen = []

    def noted(works, device, seconds):
        seen.append(tuple(works))
        return in_turns(works, device, 0.0)

    monkeypatch.setattr(heads, "in_turns", noted)
    return seen


MACHINE = Machine(1e10, 1e10)


def test_methods_that_fit_together_take_turns_and_one_that_fails_is_left_out(turns, monkeypatch):
    def broken(name, *shape):
        return replace(build(name, *shape), **({"loss": None} if name == "adaptive" else {}))

    monkeypatch.setattr(heads, "build", broken)
    found = list(heads.rows([Shape(300, 8, 16)], ["self-organized", "adaptive", "full"], CPU, torch.float32, MACHINE))
    assert turns == [("self-organized", "full")] * 4
    assert [row.method for row in found] == ["self-organized", "adaptive", "full"]
    assert [row.error for row in found] == [None, "TypeError: 'NoneType' object is not callable", None]
    assert all(min(row.step, row.forward, row.topk_1, row.topk_64) > 0 for row in found if not row.error)


def test_methods_too_large_to_be_there_together_go_one_by_one(turns, monkeypatch):
    monkeypatch.setattr(heads, "TOGETHER", 3 * 2 * 300 * 8 * 4 - 1)
    list(heads.rows([Shape(300, 8, 16)], ["self-organized", "full"], CPU, torch.float32, MACHINE, inference=False))
    assert turns == [("self-organized",), ("self-organized",), ("full",), ("full",)]


def test_exponents_are_fitted_to_the_upper_half():
    sizes = [2**k for k in range(14, 21)]
    sweep = [a_row("linear", v, v / 1e3) for v in sizes] + [a_row("root", v, 10 + 0 * v) for v in sizes[:3]]
    sweep += [a_row("root", v, v**0.5) for v in sizes[3:]]
    fitted = report.exponents(sweep)
    assert fitted["linear"] == pytest.approx(1)
    assert fitted["root"] == pytest.approx(0.5)


def test_tables_give_ratios_to_ours_and_say_what_failed(tmp_path):
    rows = [a_row("self-organized", 100, 2.0), a_row("full", 100, 30.0)]
    rows.append(Row("cce", Shape(100, 8, 8), error="out of memory"))
    sweep = [a_row("self-organized", v, 1.0) for v in (2**14, 2**15)]
    report.write(tmp_path, {"date": "today"}, Machine(1e12, 1e14), rows, sweep)
    text = (tmp_path / "bench.md").read_text()
    assert "| full | 10 | 30 | 30–30 | 15.00× | 30.0× | – | – |" in text
    assert "| cce | out of memory |" in text
    assert (tmp_path / "bench.png").stat().st_size > 1000
    assert report.read(tmp_path / "bench.json") == ({"date": "today"}, Machine(1e12, 1e14), rows, sweep)


def test_reports_of_earlier_runs_can_be_drawn_again(tmp_path):
    for path in Path("docs/benchmarks").glob("*/bench.json"):
        assert coterie("bench", "--redraw", path, "--out", tmp_path).exit_code == 0
        assert (tmp_path / "bench.md").read_text().count("\n| full ") == (path.parent / "bench.md").read_text().count(
            "\n| full "
        )


def test_the_command_writes_one_report(tmp_path):
    names = "self-organized,full,adaptive,importance"
    options = ("--shape", "2000,16,64", "--heads", names, "--no-sweep", "--device", "cpu", "--seconds", "0.05")
    done = coterie("bench", *options, "--out", tmp_path)
    assert done.exit_code == 0, done.exception
    content = json.loads((tmp_path / "bench.json").read_text())
    assert [row["method"] for row in content["rows"]] == names.split(",")
    assert all(row["step"] > 0 and row["topk_1"] > 0 for row in content["rows"])
    assert {"date", "hardware", "versions", "command", "precision"} <= content["environment"].keys()
    assert "- precision: float32" in (tmp_path / "bench.md").read_text()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--shape", "12"), "--shape takes V,d,tokens"),
        (("--shape", "12,0,3"), "--shape takes V,d,tokens"),
        (("--heads", "best"), "there is no head called 'best'; there are: self-organized"),
        (("--device", "tpu"), "device must be one of auto, cpu, cuda; got 'tpu'"),
        (("--redraw", "pyproject.toml"), "pyproject.toml is not a bench.json"),
        (("--redraw", "docs/results/demo.json"), "demo.json is not a bench.json"),
        (("--out", "pyproject.toml"), "pyproject.toml"),
    ],
)
def test_mistakes_are_answered_in_one_line(arguments, message):
    assert message in str(coterie("bench", *arguments).exception)


def test_a_search_is_asked_for_in_every_way():
    rows = search.measure(300, CPU, width=16, seconds=0.0)
    assert [(row["hidden"], row["asked"]) for row in rows] == list(product(search.MASSES, search.ASKED))
    assert all(0 < row["ours_least_ms"] <= row["ours_median_ms"] for row in rows)
    assert search.markdown(rows).count("\n") == 1 + len(rows)


def test_a_reorganization_is_timed():
    found = clusters.reorganization(words=2000, clusters=20)
    assert found["reorganizing_seconds"] > 0
    assert found["moved"]["share_of_words"] > 0.5
