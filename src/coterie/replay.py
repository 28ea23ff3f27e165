"""Questions that are asked again and again on a GPU, as CUDA graphs.

A search of a few rows takes the host longer to launch than the GPU to do. What a layer is asked often, in the same
shapes, is recorded once and replayed from then on: it reads the layer's own memory, and so whatever the layer has
learned or moved meanwhile. A layer whose tensors were put elsewhere starts anew. Nothing is recorded while other
threads are at work.
"""

import sys
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

OFTEN = 50  # questions before one is recorded: a recording takes as long as the launches of some hundred
MOST = 16  # recordings of a layer
# Threads of these have no use for a GPU's random numbers.
HARMLESS = ("tqdm.", "rich.", "tensorboard.", "ipykernel.", "torch._inductor.")

Answer = tuple[Tensor, ...]
Work = Callable[..., Answer]
Record = Callable[[Work, Answer], Work | None]

# Each stream has its own: two would write to the same memory at the same time.
_replays: "WeakKeyDictionary[nn.Module, dict[tuple[int, int], Replay]]" = WeakKeyDictionary()


def replayed(
    layer: nn.Module, question: Hashable, reads: tuple[Tensor | None, ...], work: Work, *given: Tensor
) -> Answer:
    """What `work` answers; on a GPU soon from a recording.

    `question`: all that tells this work from others, but for shapes and types of what is given; `reads`: what it reads
    of the layer. It has to be launches alone: nothing random, and nothing that waits for the device.
    """
    first = given[0]
    if not first.is_cuda or torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing():
        return work(*given)
    # An autocast may hold rounded copies of parameters, which are gone after it.
    if torch.is_autocast_enabled("cuda"):
        return work(*given)
    where = tuple(None if part is None else (part.data_ptr(), part.dtype, part.stride()) for part in reads)
    if any(place is not None and not place[0] for place in where):
        return work(*given)  # tensors made of others, as when they are spread over several devices
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    key = question, precision, *((part.shape, part.dtype) for part in given)
    at = first.get_device(), torch.cuda.current_stream(first.device).cuda_stream
    replays = _replays.setdefault(layer, {})
    if (replay := replays.get(at)) is None:
        replay = replays[at] = Replay(partial(Recorder, first.device))
    return replay.answer(key, where, work, given)


class Replay:
    """The recordings of one layer; `recorder` gives what makes one of work and what it is given, and keeps neither."""

    def __init__(self, recorder: Callable[[], Record]) -> None:
        self.recorder = recorder
        self.record = recorder()
        self.lock = threading.Lock()
        self.where: Hashable = ()
        self.met: dict[Hashable, int] = {}
        self.recordings: dict[Hashable, Work | None] = {}  # None: it could not be recorded

    def answer(self, key: Hashable, where: Hashable, work: Work, given: Answer) -> Answer:
        """`key`: what is asked, in which shapes; `where`: the memory that is read."""
        with self.lock:  # from what is written to a recording's memory until its answer is copied
            if where != self.where:
                self.where, self.met, self.recordings = where, {}, {}
                # Its memory is given up with the last recording: one that begins in it would fail halfway.
                self.record = self.recorder()
            if recording := self.recordings.get(key):
                return recording(*given)
            met = self.met[key] = self.met.get(key, 0) + 1
            if met % OFTEN == 0 and len(self.recordings) < MOST and key not in self.recordings and alone():
                self.recordings[key] = self.record(work, given)
        return work(*given)


def alone() -> bool:
    """Whether no other thread can draw random numbers meanwhile: on the GPU of a recording it might get an error."""
    harmless = {threading.current_thread()}
    with suppress(KeyError, AttributeError):  # those that wait for something to compile
        pool = sys.modules["torch._inductor.async_compile"].AsyncCompile.pool
        if pool.cache_info().currsize:
            harmless |= pool()._threads
    for thread in set(threading.enumerate()) - harmless:
        made_by = type(thread) if type(thread) is not threading.Thread else getattr(thread, "_target", None)
        if not f"{getattr(made_by, '__module__', '')}.".startswith(HARMLESS):
            return False
    return True


class Recorder:
    """Makes CUDA graphs that are never replayed at the same time: one stream records them, and they share memory."""

    possible = True  # in this process: whatever made one fail may have left more behind

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.side: torch.cuda.Stream | None = None
        self.memory: Any = None

    def __call__(self, work: Work, given: Answer) -> Work | None:
        """The work as a graph on tensors like those given; None where that fails."""
        if not Recorder.possible:
            return None
        try:
            # Tensors of an inference mode could not be written to outside of one.
            with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(self.device):
                inputs = tuple(torch.empty_like(part).copy_(part) for part in given)
                self.side = self.side or torch.cuda.Stream(self.device)
                self.memory = self.memory or torch.cuda.graph_pool_handle()
                graph, outputs = capture(work, inputs, self.side, self.memory)
        except RuntimeError:
            Recorder.possible = False
            # PyTorch's random numbers still take themselves to be recorded; the end of another recording tells them.
            with suppress(RuntimeError), torch.no_grad(), torch.cuda.device(self.device):
                capture(lambda: (torch.zeros((), device=self.device),), (), torch.cuda.Stream(self.device), None)
            return None

        def replay(*given: Tensor) -> Answer:
            for mine, part in zip(inputs, given, strict=True):
                mine.copy_(part)
            graph.replay()
            return tuple(part.clone() for part in outputs)

        return replay


def capture(work: Work, inputs: Answer, side: torch.cuda.Stream, memory: Any) -> tuple[torch.cuda.CUDAGraph, Answer]:
    """The work as a graph, and what it will have written."""
    # Not `torch.cuda.graph`, which waits for all that the device has to do, and empties its memory.
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        # Other threads may call CUDA meanwhile.
        graph.capture_begin(memory, capture_error_mode="thread_local")
        try:
            outputs = work(*inputs)
        finally:
            graph.capture_end()
    return graph, outputs
