"""How long something takes: warmed up, many times over, median and spread.

A GPU is timed by its own events, with the cache swept in between; what can be captured is also timed as a CUDA graph,
which leaves out what the host takes to launch it.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Work = Callable[[], object]
SWEEP_BYTES = 256 << 20  # several times any cache there is


@dataclass(frozen=True)
class Timing:
    """Milliseconds: the median of all repeats, and the middle half of them."""

    ms: float
    low: float
    high: float
    repeats: int


def measure(work: Work, device: torch.device, seconds: float = 1.0) -> Timing:
    """Times `work` for about as long as asked, at least five times."""
    return in_turns({"": work}, device, seconds)[""]


def in_turns(works: Mapping[str, Work], device: torch.device, seconds: float = 1.0) -> dict[str, Timing]:
    """Times several, each as `measure` does, in turns: whatever else the machine does meanwhile hits all of them."""
    on_gpu = device.type == "cuda"
    repeats: dict[str, int] = {}
    for name, work in works.items():
        for _ in range(3):
            work()
        if on_gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if on_gpu:
            torch.cuda.synchronize()
        repeats[name] = min(max(int(seconds / max(time.perf_counter() - start, 1e-6)), 5), 200)
    turns = 5 if len(works) > 1 else 1
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(turns):
        for name, work in works.items():
            if turns > 1:
                work()  # not counted: it finds the cache full of the others' numbers
            calls = -(-repeats[name] // turns)
            times[name] += _on_gpu(work, calls) if on_gpu else _on_cpu(work, calls)
    return {name: _summary(values) for name, values in times.items()}


def captured(work: Work) -> Work:
    """The same work as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def peak_memory(work: Work, before: int) -> int:
    """Bytes taken at the peak of one run, beyond those `before`, with what CUDA graphs keep for the next one."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    recorded = [part for part in torch.cuda.memory_snapshot() if part["segment_pool_id"] != (0, 0)]
    idle: int = sum(part["total_size"] - part["allocated_size"] for part in recorded)
    return torch.cuda.max_memory_allocated() + idle - before


def _on_gpu(work: Work, repeats: int) -> list[float]:
    sweep = torch.empty(SWEEP_BYTES, dtype=torch.int8, device="cuda")
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


def _on_cpu(work: Work, repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def _summary(times: list[float]) -> Timing:
    low, middle, high = statistics.quantiles(times, n=4)
    return Timing(middle, low, high, len(times))
