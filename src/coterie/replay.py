"""Questions that are asked again and again on a GPU, as CUDA graphs.

A search of a few rows takes the host longer to launch than the GPU to do. What a layer is asked often, in the same
shapes, is recorded once and replayed from then on: it reads the layer's own memory, and so whatever the layer has
learned or moved meanwhile. A layer whose tensors were put elsewhere starts anew. Nothing is recorded while other
threads are at work. (A training step, which has a backward, is recorded by `recorded.py`.)
"""

import gc
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

OFTEN = 50  # questions before one is recorded: a recording takes as long as the launches of some hundred
MOST = 16  # recordings of a layer
# Threads of these have no use for a GPU's random numbers.
HARMLESS = (
    "tqdm.", "rich.", "tensorboard.", "ipykernel.", "torch._inductor.", "torch.utils.data.", "multiprocessing.",
)  # fmt: skip

Answer = tuple[Tensor, ...]
Work = Callable[..., Answer]
Record = Callable[[Work, Answer], Work | None]
Made = TypeVar("Made")

_replays: "WeakKeyDictionary[nn.Module, dict[Hashable, Replay]]" = WeakKeyDictionary()


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
    replay = of(layer, first, "question", lambda: Replay(partial(Recorder, first.device)))
    return replay.answer((question, *shapes(given)), where, work, given)


def of(layer: nn.Module, like: Tensor, kind: Hashable, make: Callable[[], "Replay"]) -> "Replay":
    """The layer's recordings of a kind, on the stream that `like` is worked on: two streams would write to the same
    memory at the same time."""
    at = kind, like.get_device(), torch.cuda.current_stream(like.device).cuda_stream
    replays = _replays.setdefault(layer, {})
    if (replay := replays.get(at)) is None:
        replay = replays[at] = make()
    return replay


def forget(layer: nn.Module) -> None:
    """The layer's tensors go elsewhere: what was recorded of them is of no use, and keeps their memory."""
    _replays.pop(layer, None)


def shapes(given: Answer) -> tuple[Hashable, ...]:
    """What a recording depends on of what is given, and of how products are computed."""
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    return precision, *((part.shape, part.dtype) for part in given)


class Replay:
    """The recordings of one layer; `recorder` gives what makes one of work and what it is given, and keeps neither."""

    def __init__(self, recorder: Callable[[], Record], often: int | None = None, most: int = MOST) -> None:
        """Work is recorded when it comes for the `often`th time; `most` recordings at a time."""
        self.often, self.most = often or OFTEN, most
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
            if met % self.often == 0 and len(self.recordings) < self.most and key not in self.recordings and alone():
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

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.side: torch.cuda.Stream | None = None
        self.memory: Any = None

    def __call__(self, work: Work, given: Answer) -> Work | None:
        """The work as a graph on tensors like those given; None where that fails."""
        return attempt(self.device, partial(self._record, work, given))

    @torch.no_grad()
    def _record(self, work: Work, given: Answer) -> Work:
        inputs = tuple(torch.empty_like(part).copy_(part) for part in given)
        self.side = self.side or torch.cuda.Stream(self.device)
        self.memory = self.memory or torch.cuda.graph_pool_handle()
        graph, outputs = capture(work, inputs, self.side, self.memory)

        def replay(*given: Tensor) -> Answer:
            for mine, part in zip(inputs, given, strict=True):
                mine.copy_(part)
            graph.replay()
            return tuple(part.clone() for part in outputs)

        return replay


class Attempts:
    """Whether anything can be recorded in this process: whatever made one recording fail may have left more behind."""

    possible = True
    why = ""  # not


def attempt(device: torch.device, record: Callable[[], Made]) -> Made | None:
    """What is recorded; None where that fails, and ever after."""
    if not Attempts.possible:
        return None
    try:
        # Tensors of an inference mode could not be written to outside of one.
        with torch.inference_mode(False), torch.cuda.device(device):
            return record()
    except Exception as error:  # whatever a kernel that is met first there may raise
        Attempts.possible, Attempts.why = False, str(error)
        # PyTorch's random numbers still take themselves to be recorded; the end of another recording tells them.
        with suppress(RuntimeError), torch.no_grad(), torch.cuda.device(device):
            capture(lambda: (torch.zeros((), device=device),), (), torch.cuda.Stream(device), None)
        return None


def capture(work: Work, inputs: Answer, side: torch.cuda.Stream, memory: Any) -> tuple[torch.cuda.CUDAGraph, Answer]:
    """The work as a graph, and what it will have written."""
    # Not `torch.cuda.graph`, which waits for all that the device has to do, and empties its memory.
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side), _nothing_thrown_away():
        # Other threads may call CUDA meanwhile.
        graph.capture_begin(memory, capture_error_mode="thread_local")
        try:
            outputs = work(*inputs)
        finally:
            try:
                graph.capture_end()
            except RuntimeError:
                # Some versions leave the allocator in the belief that it goes on.
                with suppress(Exception):
                    torch._C._cuda_endAllocateToPool(side.device_index, memory)
                raise
    return graph, outputs


@contextmanager
def _nothing_thrown_away() -> Iterator[None]:
    """Nobody looks for garbage meanwhile: a graph or an event among it could not be ended during a recording."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
