"""The update as one CUDA graph: hundreds of kernel launches become one.

A step of a small model is bound by launching kernels, not by computing. Where shapes never change, the whole update
can be recorded once and replayed. The first few updates run as they are, on a side stream, and count like any other;
recording itself computes nothing, so no update is made twice.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from coterie.training.update import Update

WARM_UP = 3  # updates before recording: libraries choose their algorithms, the optimizer makes its state


class GraphedUpdate:
    """Calls an update; on a GPU it soon replays a recording of it."""

    def __init__(self, update: Update, say: Callable[[str], None]) -> None:
        self.update, self.say = update, say
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, ...] = ()
        self.warm = 0
        self.side = torch.cuda.Stream(update.device)

    def __call__(self, *batch: Tensor) -> None:
        if self.warm < WARM_UP:
            self._aside(batch)
            self.warm += 1
            return
        if self.warm == WARM_UP:
            self.warm += 1
            self._record(batch)
        if self.graph is None or any(a.shape != b.shape for a, b in zip(self.inputs, batch, strict=True)):
            self.update(*batch)
            return
        for static, given in zip(self.inputs, batch, strict=True):
            static.copy_(given, non_blocking=True)
        self.graph.replay()

    def _aside(self, batch: tuple[Tensor, ...]) -> None:
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            self.update(*batch)
        torch.cuda.current_stream().wait_stream(self.side)

    def _record(self, batch: tuple[Tensor, ...]) -> None:
        self.inputs = tuple(part.clone() for part in batch)
        # Gradients made by the warm-up must not be the ones the graph writes to.
        self.update.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads (TensorBoard's) may call CUDA meanwhile.
            with torch.cuda.graph(graph, stream=self.side, capture_error_mode="thread_local"):
                self.update(*self.inputs)
        except RuntimeError as error:
            torch.cuda.synchronize()
            reason = str(error).strip().splitlines()[0]
            self.say(f"this update cannot be recorded as a CUDA graph and runs as it is ({reason})")
            return
        self.graph = graph


def graphed(update: Update, wanted: bool, possible: bool, say: Callable[[str], None]) -> Callable[..., None]:
    """The update as a graph where there is a GPU, it is wanted, and the learner says it is possible."""
    if not wanted or update.device.type != "cuda":
        return update
    if not possible:
        say("this head or this number of processes cannot be recorded as a CUDA graph: the update runs as it is")
        return update
    return GraphedUpdate(update, say)
