"""The update as one CUDA graph: hundreds of kernel launches become one.

A step of a small model is bound by launching kernels, not by computing. Where batches have few shapes, the whole update
can be recorded once for each shape and replayed. Before that a few updates, of a shape that comes later a single one,
run as they are, on a side stream, and count like any other; recording itself computes nothing, so no update is made
twice.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from coterie import graphs
from coterie_lab.training.update import Update

WARM_UP = 3  # updates before recording: libraries choose their algorithms, the optimizer makes its state
AGAIN = 1  # of a shape that comes once another is recorded: kernels are compiled for it

Shapes = tuple[tuple[int, ...], ...]


class GraphedUpdate:
    """Calls an update; on a GPU it soon replays a recording of it."""

    def __init__(self, update: Update, say: Callable[[str], None]) -> None:
        self.update, self.say = update, say
        self.recordings: dict[Shapes, graphs.Graph[None]] = {}
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
        self.recordings[shapes](*batch)

    def _aside(self, batch: tuple[Tensor, ...]) -> None:
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            self.update(*batch)
        torch.cuda.current_stream().wait_stream(self.side)

    def _record(self, shapes: Shapes, batch: tuple[Tensor, ...]) -> None:
        # Gradients made outside must not be the ones the graph writes to.
        self.update.optimizer.zero_grad(set_to_none=True)
        try:
            # Every call of the update trains: those above have warmed it up.
            self.recordings[shapes] = graphs.capture(self.update, *batch, warm_up=0, stream=self.side, pool=self.memory)
        except graphs.GraphError as error:
            self.say(f"{error}: the update runs as it is")
            self.possible = False


def graphed(update: Update, wanted: bool, possible: bool, say: Callable[[str], None]) -> Callable[..., None]:
    """The update as a graph where there is a GPU, it is wanted, and the learner says it is possible."""
    if not wanted or update.device.type != "cuda":
        return update
    if not possible:
        say("this head or this number of processes cannot be recorded as a CUDA graph: the update runs as it is")
        return update
    return GraphedUpdate(update, say)
