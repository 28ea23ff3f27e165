"""Times functions after a warm-up, by median and spread of many repetitions; several functions alternate.

Other load on the machine then affects all of them. A GPU is timed by its own events, with the cache flushed in between,
or by the host's clock with a synchronisation after each call. In a plain loop the host does not wait: it is timed until
it has launched everything, and until everything is done.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Work = Callable[[], object]
SWEEP_BYTES = 256 << 20  # several times the size of any cache
TURNS = 5


@dataclass(frozen=True)
class Timing:
    """Milliseconds: the median of all repetitions, their middle half, and the minimum."""

    ms: float
    low: float
    high: float
    least: float
    repeats: int


@dataclass(frozen=True)
class Loop:
    """Milliseconds per call in a plain loop: the host's time to launch it, and the total time."""

    host: float
    wall: float


def measure(work: Work, device: torch.device, seconds: float = 1.0) -> Timing:
    """Times `work` repeatedly for about `seconds`, at least five times."""
    return in_turns({"": work}, device, seconds)[""]


def in_turns(
    works: Mapping[str, Work], device: torch.device, seconds: float = 1.0, answered: bool = False
) -> dict[str, Timing]:
    """Times several alternating functions like `measure`; `answered`: until the host has the result, also on a GPU."""
    timed = _by_events if device.type == "cuda" and not answered else _by_the_clock
    repeats: dict[str, int] = {}
    for name, work in works.items():
        for _ in range(3):
            work()
        [once] = _by_the_clock(work, 1, device)
        repeats[name] = min(max(int(1e3 * seconds / max(once, 1e-3)), 5), 200)
    turns = TURNS if len(works) > 1 else 1
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(turns):
        for name, work in works.items():
            if turns > 1:
                work()  # not counted: the cache is full of the others' numbers
            times[name] += timed(work, -(-repeats[name] // turns), device)
    return {name: _summary(values) for name, values in times.items()}


def in_loops(works: Mapping[str, Work], device: torch.device, calls: int = 20, rounds: int = 7) -> dict[str, Loop]:
    """Times several functions in alternating plain loops of some calls; takes medians of the rounds."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            wait_for(device)
            start = time.perf_counter()
            for _ in range(calls):
                work()
            launched = time.perf_counter()
            wait_for(device)
            times[name].append((launched - start, time.perf_counter() - start))
    medians = {name: map(statistics.median, zip(*values, strict=True)) for name, values in times.items()}
    return {name: Loop(*(1e3 * seconds / calls for seconds in both)) for name, both in medians.items()}


def wait_for(device: torch.device) -> None:
    """Synchronises with the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_memory(work: Work, before: int) -> int:
    """The peak memory of one run in bytes, minus that `before`."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _by_events(work: Work, repeats: int, device: torch.device) -> list[float]:
    sweep = torch.empty(SWEEP_BYTES, dtype=torch.int8, device=device)
    events = []
    for _ in range(repeats):
        sweep.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        events.append((start, end))
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def _by_the_clock(work: Work, repeats: int, device: torch.device) -> list[float]:
    times = []
    for _ in range(repeats):
        wait_for(device)
        start = time.perf_counter()
        work()
        wait_for(device)
        times.append((time.perf_counter() - start) * 1e3)
    return times


def _summary(times: list[float]) -> Timing:
    low, middle, high = statistics.quantiles(times, n=4)
    return Timing(middle, low, high, min(times), len(times))
