"""`topk(10)` from 2^14 to 2^20 words, against the dense product.

Hidden vectors are scaled until ten words carry half the mass, as in a trained model, or a twentieth, or not at all. One
vector is asked for again and again, so that the words it needs stay in the cache, or 64 in turn, so that they do not;
64 are asked for at once; and a beam of 5 hypotheses, each a little less probable than the one before, is extended. On a
GPU, in bfloat16, a call has ended when its answer is there.

Shapes: T rows, D width, V words.
"""

import math
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie import SelfOrganizedSoftmax
from coterie_lab.bench.methods import organized
from coterie_lab.bench.report import slope, table
from coterie_lab.bench.shapes import SIZES
from coterie_lab.bench.timing import Work, in_turns

ROWS, K = 64, 10
BEAM = 5
ONE, IN_TURN, AT_ONCE, EXTENDED = "one vector", f"{ROWS} in turn", f"{ROWS} at once", f"a beam of {BEAM}"
ASKED = (ONE, IN_TURN, AT_ONCE, EXTENDED)
WIDTHS = {"cpu": {512: SIZES}, "cuda": {512: SIZES, 1024: (2**17, 2**18, 2**20), 4096: (2**17,)}}
SECONDS = {"cpu": 3.0, "cuda": 0.2}  # for each figure
MASSES = {"peaked": 0.5, "middling": 0.05, "flat": None}  # of the ten best words; None: as the parameters are drawn


def measured(on: str = "cpu") -> dict[str, Any]:
    """Every size at every width, on a device."""
    device = torch.device(on)
    rows: list[dict[str, Any]] = []
    for width, sizes in WIDTHS[device.type].items():
        for n_words in sizes:
            rows += measure(n_words, device, width=width)
            print(markdown(rows[-len(ASKED) * len(MASSES) :]), flush=True)
    one_peaked = [row for row in rows if (row["width"], row["hidden"], row["asked"]) == (512, "peaked", ONE)]
    exponents = {
        key: round(slope([(row["words"], row[key]) for row in one_peaked]), 3)
        for key in ("ours_least_ms", "ours_median_ms")
    }
    return {"k": K, "mass_of_the_ten_best": MASSES, "exponent_of_one_peaked_row": exponents, "rows": rows}


@torch.no_grad()
def measure(
    n_words: int, device: torch.device, asked: Sequence[str] = ASKED, width: int = 512, seconds: float | None = None
) -> list[dict[str, Any]]:
    """Times every kind of hidden vectors with each kind of call."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    head = organized(n_words, width, device, dtype).eval()
    # Biases from the counts would decide which words are best, whatever the hidden vectors.
    for bias in (head.bias, head.cluster_bias):
        assert bias is not None
        torch.nn.init.uniform_(bias, -(width**-0.5), width**-0.5)
    assert head.prior is not None
    head.prior.shift.zero_()
    base = torch.randn(ROWS, width).to(device, dtype)
    score = -0.5 * torch.arange(float(BEAM), device=device)

    def dense(rows: Tensor) -> object:
        return F.linear(rows, head.weight, head.bias).float().log_softmax(-1).topk(K).values

    def ours(rows: Tensor) -> object:
        return head.topk(rows, K)

    def extended(rows: Tensor) -> object:
        return head.extend(rows, score, BEAM)

    found: list[dict[str, Any]] = []
    for name, mass in MASSES.items():
        hidden = scaled(head, base, mass)
        for way in asked:
            works = {"ours": in_order(extended if way == EXTENDED else ours, hidden, way)}
            works["dense"] = in_order(dense, hidden, way)
            row = {"width": width, "words": n_words, "hidden": name, "asked": way}
            for one, timing in in_turns(works, device, seconds or SECONDS[device.type], answered=True).items():
                row |= {f"{one}_least_ms": round(timing.least, 4), f"{one}_median_ms": round(timing.ms, 4)}
            found.append(row)
    return found


def in_order(method: Callable[[Tensor], object], hidden: Tensor, way: str) -> Work:
    """The method with this kind of call: each call takes the next rows."""
    parts = {
        ONE: [hidden[:1]],
        IN_TURN: list(hidden.split(1)),
        AT_ONCE: [hidden],
        EXTENDED: [hidden[begin : begin + BEAM] for begin in range(ROWS - BEAM)],
    }
    turns = cycle(parts[way])
    return lambda: method(next(turns))


def scaled(head: SelfOrganizedSoftmax, hidden: Tensor, mass: float | None) -> Tensor:
    """Scales rows (T, D) until, at the median, ten words have this mass."""
    if mass is None:
        return hidden
    low, high = 0.1, 100.0
    for _ in range(10):
        middle = math.sqrt(low * high)
        carried = head.log_prob(middle * hidden[:8]).topk(K).values.exp().sum(1).median()
        low, high = (middle, high) if carried < mass else (low, middle)
    return high * hidden


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a table."""
    columns = ("V", "d", "hidden", "asked for", "ours ms", "dense ms", "dense / ours")
    lines = []
    for row in rows:
        ours, dense = row["ours_median_ms"], row["dense_median_ms"]
        asked = (f"{row['words']:,}", f"{row['width']:,}", row["hidden"], row["asked"])
        lines.append((*asked, f"{ours:.3g}", f"{dense:.3g}", f"{dense / ours:.2f}"))
    return "\n".join(table(columns, lines, words=("hidden", "asked for")))
