"""Every method at every shape, side by side in one run.

Shapes: T tokens, D width, V words.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from coterie_lab.bench.floor import Machine
from coterie_lab.bench.methods import Method, build, zipf_counts
from coterie_lab.bench.timing import Work, captured, in_turns, peak_memory


@dataclass(frozen=True)
class Shape:
    """A size of problem."""

    words: int
    width: int
    tokens: int

    def __str__(self) -> str:
        return f"V={self.words:,} d={self.width:,} T={self.tokens:,}"


GPU_SHAPES = (
    Shape(44_370, 512, 2_560), Shape(131_072, 1_024, 8_192), Shape(262_144, 1_024, 8_192),
    Shape(131_072, 4_096, 8_192), Shape(1_000_000, 256, 4_096),
)  # fmt: skip
TOGETHER = 4 << 30  # bytes that methods which take turns may hold
CPU_SHAPES = (Shape(44_370, 512, 2_560), Shape(131_072, 512, 1_024))


@dataclass(frozen=True)
class Row:
    """One method at one shape; milliseconds, bytes. None: not measured here, or out of memory."""

    method: str
    shape: Shape
    forward: float | None = None
    step: float | None = None  # forward and backward
    step_low: float | None = None
    step_high: float | None = None
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
    """Measures, shape by shape; on a CPU the methods take turns, if there is room for all of them."""
    for shape in shapes:
        hidden, target = problem(shape, device, dtype)
        floor = machine.floor_ms(shape.words, shape.width, shape.tokens, dtype)
        # Parameters, gradients, and what a head keeps beside them.
        together = 3 * len(names) * shape.words * shape.width * dtype.itemsize <= TOGETHER
        for group in [names] if device.type == "cpu" and together else [[name] for name in names]:
            methods: dict[str, Method] = {}
            found: dict[str, Row] = {}
            for name in group:
                make = partial(build, name, shape.words, shape.width, device, dtype)
                row, method = _attempt(Row(name, shape, floor=floor), make)
                if method is not None and not (method.graph and device.type != "cuda"):
                    methods[name] = method
                if name in methods or row.error:
                    found[name] = row
            yield from _measured(found, methods, hidden, target, device, seconds, inference)
            methods.clear()
            method = None
            gc.collect()
            torch.compiler.reset()
            if device.type == "cuda":
                torch.cuda.empty_cache()


def _attempt(row: Row, work: Callable[[], Any]) -> tuple[Row, Any]:
    """What the work gives, or in the row why not: whatever a contender does wrong must not end the comparison."""
    try:
        return row, work()
    except torch.OutOfMemoryError:
        return replace(row, error="out of memory"), None
    except Exception as error:
        return replace(row, error=f"{type(error).__name__}: {str(error).splitlines()[0]}"), None


def problem(shape: Shape, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Hidden vectors (T, D) and targets by Zipf's law (T,)."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(shape.tokens, shape.width, generator=generator).to(device, dtype)
    law = zipf_counts(shape.words).double().cumsum(0)
    draws = torch.rand(shape.tokens, generator=generator, dtype=torch.float64) * law[-1]
    target = torch.searchsorted(law, draws).clamp(max=shape.words - 1)
    return hidden.requires_grad_(), target.to(device)


def _measured(
    found: dict[str, Row],
    methods: dict[str, Method],
    hidden: Tensor,
    target: Tensor,
    device: torch.device,
    seconds: float,
    inference: bool,
) -> Iterator[Row]:
    """The rows, by name, with what each method takes."""
    before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    for kind in ("step", "forward", *(("topk_1", "topk_64") if inference else ())):
        works: dict[str, Work] = {}
        for name, method in methods.items():
            method.module.train(not kind.startswith("topk"))
            if found[name].error is None:
                found[name], work = _attempt(found[name], partial(_tried, kind, method, hidden, target))
                works |= {} if work is None else {name: work}
        for name, timing in in_turns(works, device, seconds / (2 if kind.startswith("topk") else 1)).items():
            found[name] = replace(found[name], **{kind: timing.ms})  # type: ignore[arg-type]
            if kind == "step":
                found[name] = replace(found[name], step_low=timing.low, step_high=timing.high)
                if device.type == "cuda" and not methods[name].graph:
                    found[name] = replace(found[name], peak_bytes=peak_memory(works[name], before))
    yield from found.values()


def _tried(kind: str, method: Method, hidden: Tensor, target: Tensor) -> Work | None:
    """What is timed, warmed up."""
    if (work := _work(kind, method, hidden, target)) is not None:
        for _ in range(1 if method.graph else method.warm_up):
            work()
    return work


def _work(kind: str, method: Method, hidden: Tensor, target: Tensor) -> Work | None:
    """What is timed; None: this method cannot."""
    if kind == "step":
        step: Work = training_step(method, hidden, target)
        return captured(step) if method.graph else step
    if method.graph:
        return None
    if kind == "forward":
        return torch.no_grad()(lambda: method.loss(hidden, target))
    if method.topk is None:
        return None
    rows, topk = hidden[: 1 if kind == "topk_1" else 64], method.topk
    return torch.no_grad()(lambda: topk(rows, 10))


def training_step(method: Method, hidden: Tensor, target: Tensor) -> Work:
    """Forward and backward; gradients are made anew each time, as after `zero_grad()`."""
    inputs = [hidden, *method.module.parameters()]

    def step() -> None:
        torch.autograd.grad(method.loss(hidden, target), inputs)

    return step
