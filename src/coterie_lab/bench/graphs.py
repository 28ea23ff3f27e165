"""Ways to spare the host: a step of the layer in a plain loop, as a CUDA graph, and compiled."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from coterie.graphs import capture
from coterie_lab.bench.methods import organized
from coterie_lab.bench.shapes import Shape, problem
from coterie_lab.bench.timing import Work, in_loops

SHAPE = Shape(44_370, 512, 2_560)


def measured() -> dict[str, Any]:
    """Milliseconds a step, forward and backward, in loops of each way; they take turns."""
    device, dtype = torch.device("cuda"), torch.bfloat16
    hidden, target = problem(SHAPE, device, dtype)

    def way(
        prepare: Callable[[Any], Callable[..., Any]] = lambda head: head,
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> Work:
        head = organized(SHAPE.words, SHAPE.width, device, dtype)
        called, inputs = prepare(head), [hidden, *head.parameters()]

        def step() -> tuple[Tensor, ...]:
            with around():
                return torch.autograd.grad(called(hidden, target).loss, inputs)

        for _ in range(5):
            step()
        return step

    graphed = lambda head: torch.cuda.make_graphed_callables(head, (hidden, target))  # noqa: E731
    ways: dict[str, Work] = {
        "plain loop": way(),
        "plain loop, backward in the same thread": way(around=lambda: torch.autograd.set_multithreading_enabled(False)),
        "coterie.graphs": capture(way()),
        "torch.cuda.make_graphed_callables": way(graphed),
        "torch.compile": way(torch.compile),
        'torch.compile(mode="reduce-overhead")': way(lambda head: torch.compile(head, mode="reduce-overhead")),
    }
    loops = in_loops(ways, device, calls=50, rounds=9)
    return {"shape": asdict(SHAPE), "milliseconds": {name: asdict(loop) for name, loop in loops.items()}}
