"""CUDA graphs of training steps and searches; nothing is recorded unless you call `capture`.

A CUDA graph is a recorded sequence of kernel launches. Replaying it costs the host one launch instead of many, which
is where a small model, or a search of a few rows, spends most of its time.

    step = graphs.capture(train_step, hidden, target)  # train_step(hidden, target) → loss
    for hidden, target in batches:
        loss = step(hidden, target)
        head.step()
"""

import gc
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

Output = TypeVar("Output")


class GraphError(RuntimeError):
    """Raised when a function cannot be recorded as a CUDA graph."""


class Graph(Generic[Output]):
    """A recorded function, to be called with tensors of the shapes it was recorded with.

    Its outputs lie in the graph's own memory, and so do the gradients that it writes: the next call overwrites them.
    Clone what you need longer.
    """

    def __init__(
        self, graph: torch.cuda.CUDAGraph, function: Callable[..., Output], inputs: tuple[Tensor, ...], output: Output
    ) -> None:
        self.graph, self.inputs, self.output = graph, inputs, output
        self.function = function  # keeps alive what the graph reads, such as a bound method's layer
        self.after: list[Callable[[], object]] = []  # called after each replay: see `after_replay`

    @torch.no_grad()
    def __call__(self, *inputs: Tensor) -> Output:
        """Copies the inputs into the graph's own, replays it, and returns its output."""
        if len(inputs) != len(self.inputs):
            raise ValueError(f"this graph was recorded with {len(self.inputs)} tensor(s); got {len(inputs)}")
        for own, given in zip(self.inputs, inputs, strict=True):
            if own.shape != given.shape or own.dtype != given.dtype:
                raise ValueError(
                    f"this graph was recorded for {_described(own)}; got {_described(given)}: capture another graph "
                    "for that shape, or run the function itself"
                )
            if own is not given:
                own.copy_(given, non_blocking=True)
        self.graph.replay()
        for call in self.after:
            call()
        return self.output


_recording: list[Callable[[], object]] | None = None  # calls to make after each replay of the graph being recorded


def after_replay(call: Callable[[], object]) -> bool:
    """If a graph is being recorded, has `call` made after each of its replays; returns whether one is.

    For code that runs in a captured function but is to happen at every replay, such as counting updates.
    """
    if _recording is None:
        return False
    _recording.append(call)
    return True


def capture(
    function: Callable[..., Output],
    *inputs: Tensor,
    warm_up: int = 3,
    stream: torch.cuda.Stream | None = None,
    pool: Any = None,
) -> Graph[Output]:
    """Records `function` for tensors like `inputs`; raises GraphError with the reason if that fails.

    First it calls the function `warm_up` times, so that libraries choose their algorithms, kernels are compiled and the
    optimizer creates its state. These are ordinary calls, which update a model; recording itself computes nothing.

    The function must not synchronise (`.item()`, printing a loss), must do the same work for all inputs of these
    shapes, and must read whatever changes from tensors, because its Python code runs only once. Call `head.step()`
    after the replay, not in the function. A training step should begin with `optimizer.zero_grad(set_to_none=True)`, so
    that its gradients lie in the graph's memory, and use an optimizer built with `capturable=True`.

    inputs: examples, which are copied; later calls must have the same shapes and dtypes.
    stream: the one to warm up and record on. Graphs with the same `pool` (`torch.cuda.graph_pool_handle()`) share
        memory and must never be replayed at the same time.
    """
    if not torch.cuda.is_available():
        raise GraphError("CUDA graphs need a CUDA device, and there is none: run the function itself")
    if elsewhere := [tensor.device for tensor in inputs if not tensor.is_cuda]:
        raise GraphError(f"a CUDA graph reads tensors on a CUDA device; got one on {elsewhere[0]}: move it there first")
    global _recording
    device = inputs[0].device if inputs else torch.device("cuda", torch.cuda.current_device())
    own = tuple(tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in inputs)
    with torch.cuda.device(device):
        here, side = torch.cuda.current_stream(), torch.cuda.Stream() if stream is None else stream
        side.wait_stream(here)
        with torch.cuda.stream(side):
            for _ in range(warm_up):
                function(*own)
            torch.cuda.synchronize()
            calls: list[Callable[[], object]] = []
            _recording = calls
            try:
                graph, output = _record(function, own, torch.cuda.graph_pool_handle() if pool is None else pool)
            except RuntimeError as error:
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise GraphError(f"{_name(function)} cannot be recorded as a CUDA graph: {reason}") from error
            finally:
                _recording = None
        here.wait_stream(side)
    logger.info("recorded a CUDA graph of %s for %s", _name(function), ", ".join(map(_described, own)) or "no inputs")
    recorded = Graph(graph, function, own, output)
    recorded.after = calls
    return recorded


def _record(
    function: Callable[..., Output], inputs: tuple[Tensor, ...], pool: Any
) -> tuple[torch.cuda.CUDAGraph, Output]:
    """The function as a graph on the current stream, and its output.

    Not by `torch.cuda.graph`: if recording fails, that leaves the process on another stream.
    """
    graph, collects = torch.cuda.CUDAGraph(), gc.isenabled()
    gc.disable()  # a graph or an event that became garbage could not be destroyed meanwhile
    try:
        # Other threads, such as a logger's, may call CUDA meanwhile.
        graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            output = function(*inputs)
            graph.capture_end()
        except BaseException:
            _abandon(graph, pool)
            raise
    finally:
        if collects:
            gc.enable()
    return graph, output


def _abandon(graph: torch.cuda.CUDAGraph, pool: Any) -> None:
    """Ends a recording that failed, so that everything else works as before."""
    try:
        graph.capture_end()
    except RuntimeError:
        # Memory would go on being taken from the pool; PyTorch has no public way to end that after an error.
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
        # Random numbers still take themselves to be recorded: the end of another recording tells them.
        with suppress(RuntimeError):
            other = torch.cuda.CUDAGraph()
            other.capture_begin(capture_error_mode="thread_local")
            torch.zeros((), device="cuda")
            other.capture_end()


def _name(function: Callable[..., object]) -> str:
    function = getattr(function, "func", function)  # of a functools.partial
    return getattr(function, "__qualname__", type(function).__qualname__)


def _described(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
