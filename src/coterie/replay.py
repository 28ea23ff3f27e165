"""Questions that are asked again and again on a GPU, as CUDA graphs.

A search of a few rows takes the host longer to launch than the GPU to do. What a layer is asked often, in the same
shapes, is recorded once and replayed from then on: it reads the layer's own memory, and so whatever the layer has
learned or moved meanwhile. A layer whose tensors were put elsewhere starts anew. Nothing is recorded while other
threads are at work.
"""

import sys
import threading
from collections.abc import Callable, Hashable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

OFTEN = 50  # questions before one is recorded: a recording takes as long as the launches of some hundred
MOST = 16  # recordings of a layer
# Threads of these have no use for a GPU's random numbers.
HARMLESS = ("tqdm", "rich", "tensorboard", "ipykernel", "torch._inductor")

Answer = tuple[Tensor, ...]
Work = Callable[..., Answer]

_replays: "WeakKeyDictionary[nn.Module, Replay]" = WeakKeyDictionary()


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
    replay = _replays.get(layer)
    if replay is None:
        replay = _replays[layer] = Replay(record)
    # Two streams would write to the same memory at the same time: each has its own recordings.
    stream = torch.cuda.current_stream(first.device).cuda_stream
    key = question, stream, torch.get_float32_matmul_precision(), *((part.shape, part.dtype) for part in given)
    where = tuple(-1 if part is None else part.data_ptr() for part in reads)
    return replay.answer(key, where, work, given)


class Replay:
    """The recordings of one layer; `record` makes one from work and what it is given, and keeps neither."""

    def __init__(self, record: Callable[[Work, Answer], Work | None]) -> None:
        self.record = record
        self.lock = threading.Lock()
        self.where: tuple[int, ...] = ()
        self.met: dict[Hashable, int] = {}
        self.recordings: dict[Hashable, Work | None] = {}  # None: it could not be recorded

    def answer(self, key: Hashable, where: tuple[int, ...], work: Work, given: Answer) -> Answer:
        """`key`: what is asked, in which shapes; `where`: the memory that is read."""
        with self.lock:  # from what is written to a recording's memory until its answer is copied
            if where != self.where:
                self.where, self.met, self.recordings = where, {}, {}
            if recording := self.recordings.get(key):
                return recording(*given)
            met = self.met[key] = self.met.get(key, 0) + 1
            if met % OFTEN == 0 and len(self.recordings) < MOST and key not in self.recordings and alone():
                self.recordings[key] = self.record(work, given)
        return work(*given)


def alone() -> bool:
    """Whether no other thread can draw random numbers meanwhile: on the GPU of a recording it would get an error.

    The workers of a pool that wait for something to do will wait on: only this thread could give it to them.
    """
    at = sys._current_frames()
    for thread in threading.enumerate():
        if thread is threading.current_thread():
            continue
        made_by = type(thread) if type(thread) is not threading.Thread else getattr(thread, "_target", None)
        module = f"{getattr(made_by, '__module__', '')}."
        frame = at.get(thread.ident or 0)
        waits = frame is not None and frame.f_globals.get("__name__") == "concurrent.futures.thread"
        if not waits and not module.startswith(tuple(f"{name}." for name in HARMLESS)):
            return False
    return True


def record(work: Work, given: Answer) -> Work | None:
    """The work as a CUDA graph on tensors like those given; None where that fails."""
    device = given[0].device
    graph = torch.cuda.CUDAGraph()
    try:
        # Tensors of an inference mode could not be written to outside of one.
        with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(device):
            inputs = tuple(torch.empty_like(part).copy_(part) for part in given)
            # Other threads may call CUDA meanwhile.
            with torch.cuda.graph(graph, stream=torch.cuda.Stream(device), capture_error_mode="thread_local"):
                outputs = work(*inputs)
    except RuntimeError:
        torch.cuda.synchronize(device)
        return None

    def replay(*given: Tensor) -> Answer:
        for mine, part in zip(inputs, given, strict=True):
            mine.copy_(part)
        graph.replay()
        return tuple(part.clone() for part in outputs)

    return replay
