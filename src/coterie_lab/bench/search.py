"""`topk(10)` from 2^14 to 2^20 words, against the dense product.

Run as `python -m coterie_lab.bench.search OUT.json [cpu|cuda]`.

Hidden vectors are scaled until ten words carry half the mass, as in a trained model, or a twentieth, or not at all. One
vector is asked for again and again, so that the words it needs stay in the cache, or 64 in turn, so that they do not;
64 are asked for at once; and a beam of 5 hypotheses, each a little less probable than the one before, is extended. Ours
and the dense one take turns, so that whatever else the machine does hits both; the first call of a turn is not counted:
it finds the cache full of the other's numbers. On a GPU, in bfloat16, a call has ended when its answer is there; both
are called some times before, so that ours is recorded, as whatever is asked often.

Shapes: T rows, D width, V words.
"""

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie import SelfOrganizedSoftmax
from coterie_lab.bench.methods import organized
from coterie_lab.training.environment import describe

ROWS, K = 64, 10
BEAM = 5
OUR_CALLS, DENSE_CALLS = 16, 4  # a turn
WARM_UP = 64  # calls on a GPU before any counts
ONE, IN_TURN, AT_ONCE, EXTENDED = "one vector", f"{ROWS} in turn", f"{ROWS} at once", f"a beam of {BEAM}"
ASKED = (ONE, IN_TURN, AT_ONCE, EXTENDED)
SIZES = tuple(2**power for power in range(14, 21))
WIDTHS = {"cpu": {512: SIZES}, "cuda": {512: SIZES, 1024: (2**17, 2**18, 2**20), 4096: (2**17,)}}
SECONDS = {"cpu": 3.0, "cuda": 0.2}  # for each figure
MASSES = {"peaked": 0.5, "middling": 0.05, "flat": None}  # of the ten best words; None: as the parameters are drawn


def scaled(head: SelfOrganizedSoftmax, hidden: Tensor, mass: float | None) -> Tensor:
    """The rows (T, D), longer until ten words carry that mass at the median."""
    if mass is None:
        return hidden
    low, high = 0.1, 100.0
    for _ in range(10):
        middle = math.sqrt(low * high)
        carried = head.log_prob(middle * hidden[:8]).topk(K).values.exp().sum(1).median()
        low, high = (middle, high) if carried < mass else (low, middle)
    return high * hidden


def side_by_side(
    ours: Callable[[int], object], dense: Callable[[int], object], device: torch.device
) -> dict[str, float]:
    """Milliseconds of each, taking turns: the least and the median. Both are told which call it is."""
    wait: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for call in range(WARM_UP if device.type == "cuda" else 0):
        ours(call)
        dense(call)
    times: dict[str, list[float]] = {"ours": [], "dense": []}
    end = time.perf_counter() + SECONDS[device.type]
    for turn in range(200):
        for name, work, calls in (("ours", ours, OUR_CALLS), ("dense", dense, DENSE_CALLS)):
            for call in range(calls):
                start = time.perf_counter()
                work(turn * calls + call)
                wait()
                if turn and call:
                    times[name].append((time.perf_counter() - start) * 1e3)
        if turn >= 3 and time.perf_counter() > end:
            break
    return {
        f"{name}_{kind}_ms": round(take(values), 4)
        for name, values in times.items()
        for kind, take in (("least", min), ("median", statistics.median))
    }


@torch.no_grad()
def measure(
    n_words: int, device: torch.device, asked: Sequence[str] = ASKED, width: int = 512
) -> list[dict[str, object]]:
    """Every kind of hidden vectors, asked for in each way."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    head = organized(n_words, width, device, dtype).eval()
    # Biases as the counts tell them would decide which words are best, whatever the hidden vectors are.
    for bias in (head.bias, head.cluster_bias):
        assert bias is not None
        torch.nn.init.uniform_(bias, -(width**-0.5), width**-0.5)
    assert head.prior is not None
    head.prior.shift.zero_()
    base = torch.randn(ROWS, width).to(device, dtype)
    score = -0.5 * torch.arange(float(BEAM), device=device)

    def dense(hidden: Tensor) -> Tensor:
        return F.linear(hidden, head.weight, head.bias).float().log_softmax(-1).topk(K).values

    rows: list[dict[str, object]] = []
    for name, mass in MASSES.items():
        hidden = scaled(head, base, mass)
        ways: dict[str, tuple[Callable[[int], object], Callable[[int], object]]] = {
            ONE: (lambda _, h=hidden: head.topk(h[:1], K), lambda _, h=hidden: dense(h[:1])),  # type: ignore[misc]
            IN_TURN: (
                lambda call, h=hidden: head.topk(h[call % ROWS, None], K),  # type: ignore[misc]
                lambda call, h=hidden: dense(h[call % ROWS, None]),  # type: ignore[misc]
            ),
            AT_ONCE: (lambda _, h=hidden: head.topk(h, K), lambda _, h=hidden: dense(h)),  # type: ignore[misc]
            EXTENDED: (
                lambda call, h=hidden: head.extend(h[call % (ROWS - BEAM) :][:BEAM], score, BEAM),  # type: ignore[misc]
                lambda call, h=hidden: dense(h[call % (ROWS - BEAM) :][:BEAM]),  # type: ignore[misc]
            ),
        }
        for way in asked:
            timed = side_by_side(*ways[way], device)
            rows.append({"width": width, "words": n_words, "hidden": name, "asked": way, **timed})
    return rows


def exponent(rows: list[dict[str, object]], key: str) -> float:
    """The slope of log time against log V, by least squares, for one peaked row."""
    points = [
        (float(str(r["words"])), float(str(r[key])))
        for r in rows
        if (r["width"], r["hidden"], r["asked"]) == (512, "peaked", ONE)
    ]
    slope, _ = statistics.linear_regression([math.log(v) for v, _ in points], [math.log(t) for _, t in points])
    return round(slope, 3)


def table(rows: list[dict[str, object]]) -> str:
    lines = [
        "| V | d | hidden | asked for | ours ms | dense ms | dense / ours |",
        "| --: | --: | --- | --- | --: | --: | --: |",
    ]
    for r in rows:
        ours, dense = float(str(r["ours_median_ms"])), float(str(r["dense_median_ms"]))
        asked = f"| {r['words']:,} | {r['width']:,} | {r['hidden']} | {r['asked']}"
        lines.append(f"{asked} | {ours:.3g} | {dense:.3g} | {dense / ours:.2f} |")
    return "\n".join(lines)


def main() -> None:
    rows: list[dict[str, object]] = []
    device = torch.device(sys.argv[2] if len(sys.argv) > 2 else "cpu")
    for width, sizes in WIDTHS[device.type].items():
        for n_words in sizes:
            rows += measure(n_words, device, width=width)
            print(table(rows[-len(ASKED) * len(MASSES) :]), flush=True)
    result = {
        "environment": describe(),
        "k": K,
        "mass_of_the_ten_best": MASSES,
        "exponent_of_one_peaked_row": {key: exponent(rows, key) for key in ("ours_least_ms", "ours_median_ms")},
        "rows": rows,
    }
    if len(sys.argv) > 1:
        out = Path(sys.argv[1])
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        out.with_suffix(".md").write_text(table(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
