"""Every method at every shape, side by side in one run.

Shapes: T tokens, D width, V words.
"""

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.bench.floor import Machine
from coterie.bench.methods import Method, build, zipf_counts
from coterie.bench.timing import Work, captured, measure, peak_memory


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
    """Measures, shape by shape."""
    for shape in shapes:
        hidden, target = problem(shape, device, dtype)
        for name in names:
            floor = machine.floor_ms(shape.words, shape.width, shape.tokens, dtype)
            row = Row(name, shape, floor=floor)
            try:
                method = build(name, shape.words, shape.width, device, dtype)
                if method is None or (method.graph and device.type != "cuda"):
                    continue
                yield _measured(row, method, hidden, target, device, seconds, inference)
            except torch.OutOfMemoryError:
                yield replace(row, error="out of memory")
            except Exception as error:  # whatever a contender does wrong must not end the comparison
                yield replace(row, error=f"{type(error).__name__}: {str(error).splitlines()[0]}")
            method = None
            gc.collect()
            torch.compiler.reset()
            if device.type == "cuda":
                torch.cuda.empty_cache()


def problem(shape: Shape, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Hidden vectors (T, D) and targets by Zipf's law (T,)."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(shape.tokens, shape.width, generator=generator).to(device, dtype)
    law = zipf_counts(shape.words).double().cumsum(0)
    draws = torch.rand(shape.tokens, generator=generator, dtype=torch.float64) * law[-1]
    target = torch.searchsorted(law, draws).clamp(max=shape.words - 1)
    return hidden.requires_grad_(), target.to(device)


def _measured(
    row: Row, method: Method, hidden: Tensor, target: Tensor, device: torch.device, seconds: float, inference: bool
) -> Row:
    step: Work = training_step(method, hidden, target)
    if method.graph:
        step = captured(step)
    timing = measure(step, device, seconds)
    row = replace(row, step=timing.ms, step_low=timing.low, step_high=timing.high)
    if method.graph:
        return row
    with torch.no_grad():
        row = replace(row, forward=measure(lambda: method.loss(hidden, target), device, seconds).ms)
        if inference and method.topk is not None:
            topk = method.topk
            method.module.eval()
            row = replace(
                row,
                topk_1=measure(lambda: topk(hidden[:1], 10), device, seconds / 2).ms,
                topk_64=measure(lambda: topk(hidden[:64], 10), device, seconds / 2).ms,
            )
            method.module.train()
    return replace(row, peak_bytes=peak_memory(step)) if device.type == "cuda" else row


def training_step(method: Method, hidden: Tensor, target: Tensor) -> Work:
    """Forward and backward; gradients are made anew each time, as after `zero_grad()`."""
    inputs = [hidden, *method.module.parameters()]

    def step() -> None:
        torch.autograd.grad(method.loss(hidden, target), inputs)

    return step
