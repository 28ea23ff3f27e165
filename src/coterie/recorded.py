"""A training step that is made again and again on a GPU, as two CUDA graphs: its forward and its backward.

Operation by operation, a step of the layer takes the host longer to launch than the GPU to do. Steps of one shape are
therefore recorded after a few, and replayed from then on, wherever that cannot be told from calling them:

- one forward at a time: until its backward is over, or nobody can ask for it any more, others run as they are;
- a gradient that somebody still holds never changes: gradients lie in the recording's own memory until one is found to
  be held when the next is due (as where several batches are summed); the step is then recorded once more, and its
  gradients are copies from then on;
- what a backward reads must be where the forward found it: if it was moved meanwhile, the step is computed again;
- parameters put elsewhere, other settings, hooks, a compiler, a checkpoint of activations: as they are.

Shapes: T tokens, D width.
"""

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol
from weakref import WeakMethod

import torch
from torch import Tensor, nn

from coterie.loss.dispatch import in_backward
from coterie.loss.levels import refuse_second_derivatives
from coterie.replay import Answer, Replay, Work, alone, attempt, capture, of, shapes

OFTEN = 20  # steps before one is recorded
MOST = 2  # recordings of a layer: each keeps memory for a gradient of every parameter
# Of more, the GPU's work takes longer than the host's, and what is kept would be missed elsewhere.
LARGEST = 1536 << 20  # bytes of parameters
LONGEST = 1 << 25  # numbers of a batch of hidden vectors

ROOM = 16  # times the bytes of a batch of hidden vectors: what a step keeps and uses

# One for each device: memory that cuBLAS keeps for a stream stays.
_sides: dict[int, torch.cuda.Stream] = {}

Step = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # hidden (..., D), target (...) → log P(target), loss


class Graph(Protocol):
    """Work that can be done again on the same memory."""

    def replay(self) -> None: ...


class Reads(NamedTuple):
    """What a step reads of its layer."""

    parameters: tuple[Tensor | None, ...]
    fixed: tuple[Tensor, ...]  # what its backward reads beside them, and what must not change before


def step(
    layer: nn.Module, settings: Hashable, reads: Reads, work: Step, hidden: Tensor, target: Tensor
) -> tuple[Tensor, Tensor]:
    """What the layer's method `work` gives: log P(target) (...) and the loss; soon from a recording.

    `settings`: all that changes what it computes, beside the layer's tensors. It has to be launches alone.
    """
    parameters = tuple(layer.parameters())
    if not recordable(hidden, parameters, reads.parameters):
        return work(hidden, target)
    tensors = (*parameters, *layer.buffers())
    where = tuple((id(part), part.data_ptr(), part.dtype, part.stride(), part.requires_grad) for part in tensors)
    kind = "step", threading.get_ident()  # of two threads, each would take the other's step for its own
    replay = of(layer, hidden, kind, lambda: Replay(lambda: recorded_step, OFTEN, MOST))
    key = settings, hidden.requires_grad, autocast_of(hidden), *shapes((hidden, target))
    output, loss = replay.answer(key, where, AsItIs(work, reads.fixed), (hidden, target, *parameters))
    return output, loss


def recordable(hidden: Tensor, parameters: tuple[Tensor, ...], read: tuple[Tensor | None, ...]) -> bool:
    """Whether a step is an ordinary one: a backward will follow, nobody watches its operations, and all that is read
    are the layer's parameters."""
    if not torch.is_grad_enabled() or torch.cuda.is_current_stream_capturing() or in_backward():
        return False
    if (
        torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
        or torch.is_anomaly_enabled()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
    ):
        return False
    # No weights made of others or put in a parameter's place, as those that are spread over several devices.
    own = {id(part) for part in parameters}
    usual = all(part is None or id(part) in own for part in read) and all(
        type(part) in (Tensor, nn.Parameter) and part.device == hidden.device and not part._is_view()
        for part in parameters
    )
    trained = any(part.requires_grad for part in (hidden, *parameters))
    small = hidden.numel() <= LONGEST and sum(part.nbytes for part in parameters) <= LARGEST
    return usual and trained and small and type(hidden) is Tensor


def autocast_of(like: Tensor) -> tuple[bool, torch.dtype]:
    kind = like.device.type
    return torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)


class AsItIs:
    """The step, operation by operation."""

    def __init__(self, work: Step, fixed: Answer) -> None:
        self.work, self.fixed = work, fixed

    def __call__(self, hidden: Tensor, target: Tensor, *parameters: Tensor) -> Answer:
        return self.work(hidden, target)


def recorded_step(step: Any, given: Answer) -> Work | None:
    """The step as graphs on tensors like those given; None where that fails."""
    found = attempted(step.work, *given)
    return None if found is None else RecordedStep(step, found)


class RecordedStep:
    """The step by its recording; as it is while another one's backward is still to come."""

    def __init__(self, step: AsItIs, recording: "Recording") -> None:
        self.method = WeakMethod(step.work)  # a recording must not keep its layer
        self.fixed = step.fixed
        self.recording: Recording | None = recording

    def __call__(self, hidden: Tensor, target: Tensor, *parameters: Tensor) -> Answer:
        work = self.method()
        assert work is not None  # its layer asks
        if self.recording is not None and self.recording.spent and alone():
            self.recording = None  # before there is another
            self.recording = attempted(work, hidden, target, *parameters, lends=False)
        if self.recording is None or self.recording.spent or self.recording.awaited():
            return work(hidden, target)
        answer: Answer = _Replayed.apply(  # type: ignore[no-untyped-call]
            self.recording, self.method, self.fixed, hidden, target, *parameters
        )
        return answer


def attempted(work: Step, hidden: Tensor, target: Tensor, *parameters: Tensor, **how: bool) -> "Recording | None":
    """The step as graphs; None where there is no room for it or it cannot be."""
    if not room(hidden, parameters):
        return None
    return attempt(hidden.device, lambda: record(work, hidden, target, *parameters, **how))


def room(hidden: Tensor, parameters: Answer) -> bool:
    """Whether enough memory is free. A recording takes none that others have left, and one that fails for lack of it
    spoils the others."""
    free, _ = torch.cuda.mem_get_info(hidden.device)
    return free >= 2 * sum(part.nbytes for part in parameters) + ROOM * hidden.nbytes


def record(work: Step, hidden: Tensor, target: Tensor, *parameters: Tensor, lends: bool = True) -> "Recording":
    """The step as two graphs. `lends`: whether gradients are given away where they were written."""
    mine = torch.empty_like(hidden, memory_format=torch.contiguous_format).requires_grad_(hidden.requires_grad)
    words = torch.empty_like(target, memory_format=torch.contiguous_format)
    enabled, dtype = autocast_of(hidden)
    if (side := _sides.get(hidden.get_device())) is None:
        side = _sides[hidden.get_device()] = torch.cuda.Stream(hidden.device)
    # Where a parameter's gradient goes belongs to a stream, which is another one while an earlier loss is alive.
    doubles = doubles_of(parameters)
    # Rounded copies that an autocast holds would be gone after it.
    unkept = torch.autocast(hidden.device.type, dtype, enabled, cache_enabled=False)
    with unkept, standing_in(work.__self__, parameters, doubles):  # type: ignore[attr-defined]
        forward, results = capture(work, (mine, words), side, torch.cuda.graph_pool_handle())
    inputs = (mine, *doubles)
    due = tuple(torch.zeros_like(result) for result in results)
    found: list[Tensor | None] = []

    def differentiate(*due: Tensor) -> Answer:
        # There may be another backward of the same forward.
        found[:] = gradients_of(results, inputs, due, retain_graph=True)
        return ()

    # In memory of its own: the next forward must not write where a gradient lies that somebody holds.
    backward, _ = capture(differentiate, due, side, torch.cuda.graph_pool_handle())
    results = tuple(result.detach() for result in results)
    return Recording((mine, words), results, due, tuple(found), forward, backward, lends)


def doubles_of(parts: Answer) -> Answer:
    """Other tensors on the same memory."""
    return tuple(part.detach().requires_grad_(part.requires_grad) for part in parts)


@contextmanager
def standing_in(layer: nn.Module, parameters: Answer, doubles: Sequence[Tensor]) -> Iterator[None]:
    """The layer has tensors on the same memory in place of its parameters."""
    double_of = {id(part): double for part, double in zip(parameters, doubles, strict=True)}
    places = [(module._parameters, name) for module in layer.modules() for name in module._parameters]
    before = [own[name] for own, name in places]
    if any(part is not None and id(part) not in double_of for part in before):
        raise RuntimeError("a parameter of the layer was put in place of another between a forward and its backward")
    try:
        for (own, name), part in zip(places, before, strict=True):
            own[name] = double_of.get(id(part), part)  # type: ignore[assignment]
        yield
    finally:
        for (own, name), part in zip(places, before, strict=True):
            own[name] = part


def gradients_of(
    results: Answer, inputs: Answer, due: tuple[Tensor | None, ...], retain_graph: bool = False
) -> list[Tensor | None]:
    """Of the inputs, in their order; None: it has none."""
    asked = [part for part in inputs if part.requires_grad]
    given = [(result, gradient) for result, gradient in zip(results, due, strict=True) if gradient is not None]
    wanted, gradients = zip(*given, strict=True)
    found = iter(torch.autograd.grad(wanted, asked, gradients, retain_graph=retain_graph, allow_unused=True))
    return [next(found) if part.requires_grad else None for part in inputs]


class Recording:
    """A step's graphs and the memory they read and write."""

    def __init__(
        self, given: Answer, results: Answer, due: Answer, gradients: tuple[Tensor | None, ...],
        forward: Graph, backward: Graph, lends: bool = True,
    ) -> None:  # fmt: skip
        """`given`: hidden, target; `results`: log P, loss; `due`: their gradients, all zero; `gradients`: of hidden and
        the parameters."""
        self.given, self.results, self.due, self.gradients = given, results, due, gradients
        self.forward, self.backward = forward, backward
        self.zero = [True] * len(due)
        self.token = torch.empty(1)  # each backward that is still to come holds on to its memory
        self.nobody: list[int] = []  # holders of the token and of the gradients when nobody else has them
        self.lends = lends
        self.spent = False  # whether its memory is somebody else's

    def awaited(self) -> bool:
        """Whether a backward may still come."""
        if not self.nobody:  # not before what recorded it has let go
            self.nobody = [holders(part) for part in (self.token, *self._written())]
        return holders(self.token) > self.nobody[0]

    def held(self) -> bool:
        """Whether somebody has a gradient of the backward before."""
        return any(holders(part) > alone for part, alone in zip(self._written(), self.nobody[1:], strict=True))

    def _written(self) -> Answer:
        return tuple(part for part in self.gradients if part is not None)

    def begin(self, hidden: Tensor, target: Tensor) -> Answer:
        """The forward."""
        for mine, part in zip(self.given, (hidden, target), strict=True):
            mine.copy_(part)
        self.forward.replay()
        return tuple(result.clone() for result in self.results)

    def finish(self, due: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        """The backward: gradients, in memory that the next one writes to unless they are held then."""
        for n, (mine, part) in enumerate(zip(self.due, due, strict=True)):
            if part is not None:
                mine.copy_(part)
            elif not self.zero[n]:
                mine.zero_()
            self.zero[n] = part is None
        self.backward.replay()
        # Another tensor on the same memory: nobody else has it, so that it becomes a parameter's gradient as it is.
        return [None if part is None else part.detach() if self.lends else part.clone() for part in self.gradients]


class _Replayed(torch.autograd.Function):
    """A step by its recording."""

    @staticmethod
    def forward(
        ctx: Any, recording: Recording, method: Any, fixed: Answer, hidden: Tensor, target: Tensor, *parameters: Tensor
    ) -> Any:
        ctx.recording, ctx.method, ctx.autocast = recording, method, autocast_of(hidden)
        ctx.places = [part.data_ptr() for part in parameters]
        # They are not read here, but whoever changes them before the backward is to be told, as ever.
        ctx.save_for_backward(recording.token.detach(), *parameters, *fixed)
        ctx.set_materialize_grads(False)
        return recording.begin(hidden, target)

    @staticmethod
    def backward(ctx: Any, *due: Tensor | None) -> Any:
        refuse_second_derivatives()
        parameters = ctx.saved_tensors[1 : 1 + len(ctx.places)]
        recording: Recording = ctx.recording
        moved = [part.data_ptr() for part in parameters] != ctx.places
        held = recording.lends and recording.held()
        recording.spent |= held
        found: list[Tensor | None] = [None] * (1 + len(parameters))
        if any(gradient is not None for gradient in due):
            found = _again(ctx, parameters, due) if held or moved else recording.finish(due)
        return None, None, None, found[0], None, *found[1:]


def _again(ctx: Any, parameters: Answer, due: tuple[Tensor | None, ...]) -> list[Tensor | None]:
    """The gradients without the recording; what is computed in a backward is neither counted nor remembered."""
    if (work := ctx.method()) is None:
        raise RuntimeError("the layer is gone and its loss cannot be differentiated without it: keep the layer too")
    hidden, target = ctx.recording.given
    enabled, dtype = ctx.autocast
    mine, *doubles = doubles_of((hidden, *parameters))  # hooks on the parameters are still to be called
    autocast = torch.autocast(hidden.device.type, dtype, enabled)
    with torch.enable_grad(), autocast, standing_in(work.__self__, parameters, doubles):
        results = work(mine, target)
    return gradients_of(results, (mine, *doubles), due)


def holders(part: Tensor) -> int:
    """How many tensors lie in the same memory, and a constant."""
    return int(torch._C._storage_Use_Count(part.untyped_storage()._cdata))
