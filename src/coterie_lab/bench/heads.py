"""Times every method at every shape in one run.

Shapes: T tokens, D width, V words.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch

from coterie.graphs import capture
from coterie_lab.bench.methods import Method, build
from coterie_lab.bench.shapes import Machine, Shape, problem
from coterie_lab.bench.timing import Work, in_loops, in_turns, peak_memory

TOGETHER = 4 << 30  # bytes that alternating methods may hold together
Result = TypeVar("Result")


@dataclass(frozen=True)
class Row:
    """One method at one shape; milliseconds, bytes. None: not measured here, or out of memory."""

    method: str
    shape: Shape
    forward: float | None = None
    step: float | None = None  # forward and backward
    step_low: float | None = None
    step_high: float | None = None
    host: float | None = None  # of a step in a plain loop: the host's time to launch it
    loop: float | None = None  # of a step in a plain loop: the total time
    peak_bytes: int | None = None
    floor: float | None = None
    topk_1: float | None = None  # topk(10) of one hidden vector
    topk_64: float | None = None
    error: str | None = None


def rows(
    shapes: Sequence[Shape],
    names: Sequence[str],
    device: torch.device,
    dtype: torch.dtype,
    machine: Machine,
    seconds: float = 1.0,
    inference: bool = True,
) -> Iterator[Row]:
    """Measures shape by shape; on a CPU the methods alternate if memory has room for all of them."""
    for shape in shapes:
        # Parameters, gradients and other state of a head.
        together = 3 * len(names) * shape.words * shape.width * dtype.itemsize <= TOGETHER
        for group in [names] if device.type == "cpu" and together else [[name] for name in names]:
            contest = Contest(shape, group, device, dtype)
            contest.training(seconds)
            if inference:
                contest.inference(seconds / 2)
            for row in contest.rows.values():
                yield replace(row, floor=machine.floor_ms(shape, dtype))
            del contest
            gc.collect()
            torch.compiler.reset()
            if device.type == "cuda":
                torch.cuda.empty_cache()


class Contest:
    """Methods at one shape that take turns. A method that fails has its error in its row and is left out from then on:
    whatever a contender does wrong must not end the comparison."""

    def __init__(self, shape: Shape, names: Sequence[str], device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.hidden, self.target = problem(shape, device, dtype)
        self.before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
        self.rows: dict[str, Row] = {}
        self.methods: dict[str, Method] = {}
        for name in names:
            self.rows[name] = Row(name, shape)
            method = self.attempt(name, partial(build, name, shape, device, dtype))
            if method is not None and (device.type == "cuda" or not method.graph):
                self.methods[name] = method
            elif self.rows[name].error is None:
                del self.rows[name]  # not available on this machine

    def training(self, seconds: float) -> None:
        """Times steps, also in a plain loop, and the forward alone; measures memory."""
        steps = self.works(self.step)
        for name, timing in in_turns(steps, self.device, seconds).items():
            self.note(name, step=timing.ms, step_low=timing.low, step_high=timing.high)
        if self.device.type == "cuda":
            for name, loop in in_loops(steps, self.device).items():
                self.note(name, host=loop.host, loop=loop.wall)
            for name, step in steps.items():
                if not self.methods[name].graph:
                    self.note(name, peak_bytes=peak_memory(step, self.before))
        for name, timing in in_turns(self.works(self.forward), self.device, seconds).items():
            self.note(name, forward=timing.ms)

    def inference(self, seconds: float) -> None:
        """Times topk(10) of one row and of 64."""
        for method in self.methods.values():
            method.module.eval()
        for n_rows in (1, 64):
            works = self.works(partial(self.topk, n_rows))
            for name, timing in in_turns(works, self.device, seconds).items():
                self.note(name, **{f"topk_{n_rows}": timing.ms})

    def step(self, method: Method) -> Work:
        """Forward and backward with new gradients each time, as after `zero_grad()`."""
        inputs = [self.hidden, *method.module.parameters()]
        step = lambda: torch.autograd.grad(method.loss(self.hidden, self.target), inputs)  # noqa: E731
        return capture(step) if method.graph else step

    def forward(self, method: Method) -> Work | None:
        return None if method.graph else torch.no_grad()(lambda: method.loss(self.hidden, self.target))

    def topk(self, n_rows: int, method: Method) -> Work | None:
        if method.graph or (topk := method.topk) is None:
            return None
        return torch.no_grad()(lambda: topk(self.hidden[:n_rows], 10))

    def works(self, make: Callable[[Method], Work | None]) -> dict[str, Work]:
        """The functions to time, of the methods that have them, after a warm-up."""

        def warm(method: Method) -> Work | None:
            work = make(method)
            if work is not None:
                work()
            return work

        fit = {name: method for name, method in self.methods.items() if self.rows[name].error is None}
        found = {name: self.attempt(name, partial(warm, method)) for name, method in fit.items()}
        return {name: work for name, work in found.items() if work is not None}

    def attempt(self, name: str, work: Callable[[], Result]) -> Result | None:
        """The result of the work; None if it fails, with the reason in the row."""
        try:
            return work()
        except torch.OutOfMemoryError:
            self.note(name, error="out of memory")
        except Exception as error:
            self.note(name, error=f"{type(error).__name__}: {str(error).splitlines()[0]}")
        return None

    def note(self, name: str, **found: Any) -> None:
        """Writes figures into a method's row."""
        self.rows[name] = replace(self.rows[name], **found)
