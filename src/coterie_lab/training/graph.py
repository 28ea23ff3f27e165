"""The update as one CUDA graph, which replaces hundreds of kernel launches by one.

A step of a small model is limited by launching kernels, not by computing. If batches have few shapes, the whole update
can be recorded once per shape and replayed. Before that, a few ordinary updates run on a side stream as a warm-up; for
later shapes, a single one. Recording itself computes nothing, so no update is made twice.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from coterie import graphs
from coterie_lab.training.update import Update

WARM_UP = 3  # updates before recording: libraries choose their algorithms, the optimizer makes its state
AGAIN = 1  # the same for each further shape: kernels are compiled for it

Shapes = tuple[tuple[int, ...], ...]


class GraphedUpdate:
    """Calls an update, records it after its warm-up, and replays the graph from then on."""

    def __init__(self, update: Update, say: Callable[[str], None]) -> None:
        self.update, self.say = update, say
        self.recordings: dict[Shapes, graphs.Graph[None]] = {}
        self.met: dict[Shapes, int] = {}  # updates so far of shapes that are not recorded yet
        self.possible = True
        self.side = torch.cuda.Stream(update.device)
        # The graphs run one at a time and keep no state in this memory, so they can share it.
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
        self.recordings[shapes](*batch)

    def _aside(self, batch: tuple[Tensor, ...]) -> None:
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            self.update(*batch)
        torch.cuda.current_stream().wait_stream(self.side)

    def _record(self, shapes: Shapes, batch: tuple[Tensor, ...]) -> None:
        # The graph must allocate its own gradients.
        self.update.optimizer.zero_grad(set_to_none=True)
        try:
            # No warm-up here, because each call of the update trains: those above were the warm-up.
            self.recordings[shapes] = graphs.capture(self.update, *batch, warm_up=0, stream=self.side, pool=self.memory)
        except graphs.GraphError as error:
            self.say(f"{error}: the update runs without a graph")
            self.possible = False


def graphed(update: Update, wanted: bool, possible: bool, say: Callable[[str], None]) -> Callable[..., None]:
    """The update, as a CUDA graph if it runs on a GPU, is `wanted` and is `possible`."""
    if not wanted or update.device.type != "cuda":
        return update
    if not possible:
        say("this head or this number of processes cannot be recorded as a CUDA graph: the update runs without one")
        return update
    return GraphedUpdate(update, say)
