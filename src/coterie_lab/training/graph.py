"""The update as one CUDA graph: hundreds of kernel launches become one.

A step of a small model is bound by launching kernels, not by computing. Where batches have few shapes, the whole update
can be recorded once for each shape and replayed. Before that a few updates, of a shape that comes later a single one,
run as they are, on a side stream, and count like any other; recording itself computes nothing, so no update is made
twice.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie_lab.training.update import Update

WARM_UP = 3  # updates before recording: libraries choose their algorithms, the optimizer makes its state
AGAIN = 1  # of a shape that comes once another is recorded: kernels are compiled for it

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Recording:
    """The update on batches of one shape, and where it reads them."""

    inputs: tuple[Tensor, ...]
    graph: torch.cuda.CUDAGraph


class GraphedUpdate:
    """Calls an update; on a GPU it soon replays a recording of it."""

    def __init__(self, update: Update, say: Callable[[str], None]) -> None:
        self.update, self.say = update, say
        self.recordings: dict[Shapes, Recording] = {}
        self.met: dict[Shapes, int] = {}  # updates of a shape that is not recorded yet
        self.possible = True
        self.side = torch.cuda.Stream(update.device)
        # One graph runs at a time and leaves nothing in its memory that another needs: they can share it.
        self.memory = torch.cuda.graph_pool_handle()

    def __call__(self, *batch: Tensor) -> None:
        shapes = tuple(tuple(part.shape) for part in batch)
        if self.possible and shapes not in self.recordings:
            met = self.met[shapes] = self.met.get(shapes, 0) + 1
            if met <= (AGAIN if self.recordings else WARM_UP):
                self._aside(batch)
                return
            self._record(shapes, batch)
        if not self.possible:
            self.update(*batch)
            return
        recording = self.recordings[shapes]
        for static, given in zip(recording.inputs, batch, strict=True):
            static.copy_(given, non_blocking=True)
        recording.graph.replay()

    def _aside(self, batch: tuple[Tensor, ...]) -> None:
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            self.update(*batch)
        torch.cuda.current_stream().wait_stream(self.side)

    def _record(self, shapes: Shapes, batch: tuple[Tensor, ...]) -> None:
        inputs = tuple(part.clone() for part in batch)
        # Gradients made outside must not be the ones the graph writes to.
        self.update.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads (TensorBoard's) may call CUDA meanwhile.
            with torch.cuda.graph(graph, pool=self.memory, stream=self.side, capture_error_mode="thread_local"):
                self.update(*inputs)
        except RuntimeError as error:
            torch.cuda.synchronize()
            reason = str(error).strip().splitlines()[0]
            self.say(f"this update cannot be recorded as a CUDA graph and runs as it is ({reason})")
            self.possible = False
            return
        self.recordings[shapes] = Recording(inputs, graph)


def graphed(update: Update, wanted: bool, possible: bool, say: Callable[[str], None]) -> Callable[..., None]:
    """The update as a graph where there is a GPU, it is wanted, and the learner says it is possible."""
    if not wanted or update.device.type != "cuda":
        return update
    if not possible:
        say("this head or this number of processes cannot be recorded as a CUDA graph: the update runs as it is")
        return update
    return GraphedUpdate(update, say)
