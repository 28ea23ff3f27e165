"""What the tests of recorded steps share: layers whose steps are recorded at once, a stand-in where there is no GPU.

The stand-in does what two CUDA graphs do: it computes into memory of its own, the same every time. The fixture works in
the modules that import it.
"""

import copy
import weakref

import pytest
import torch

from coterie import recorded, replay
from coterie.softmax import HeadOutput
from tests.layers import make

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.float32 if DEVICE == "cuda" else torch.float64  # the kernels' and the grouped backend's
CLOSE = {"rtol": 1e-5, "atol": 1e-6} if DEVICE == "cuda" else {"rtol": 1e-12, "atol": 1e-12}
WORDS, WIDTH, TOKENS = 300, 32, 11
on_a_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")


class Again:
    """Work that is done at every replay."""

    def __init__(self, work):
        self.replay = work


def stand_in(work, hidden, target, *parameters, lends=True):
    """As `recorded.record`, of operations instead of launches: nothing but memory ties them to the parameters."""
    mine, words = hidden.detach().clone().requires_grad_(hidden.requires_grad), target.clone()
    live, method = [], weakref.WeakMethod(work)
    results = hidden.new_zeros(target.shape), hidden.new_zeros(())
    due = tuple(torch.zeros_like(result) for result in results)
    gradients = tuple(torch.zeros_like(part) if part.requires_grad else None for part in (mine, *parameters))

    def forward():
        copies = tuple(part.detach().clone().requires_grad_(part.requires_grad) for part in parameters)
        with torch.enable_grad(), recorded.standing_in(method().__self__, parameters, copies):
            live[:] = method()(mine, words), (mine, *copies)
        for result, new in zip(results, live[0], strict=True):
            result.copy_(new.detach())

    def backward():
        for gradient, new in zip(gradients, recorded.gradients_of(*live, due, True), strict=True):
            if gradient is not None:
                gradient.copy_(new)

    return recorded.Recording((mine, words), results, due, gradients, Again(forward), Again(backward), lends)


@pytest.fixture(autouse=True, name="kept")
def recorded_at_once(monkeypatch):
    """The recordings that were made; each is made at the second step of its kind."""
    made, replays = [], {}
    real = recorded.record if DEVICE == "cuda" else stand_in
    monkeypatch.setattr(recorded, "record", lambda *given, **how: made.append(real(*given, **how)) or made[-1])
    monkeypatch.setattr(recorded, "OFTEN", 2)
    for module in ("replay", "recorded"):
        monkeypatch.setattr(f"coterie.{module}.alone", lambda: True)
    if DEVICE == "cpu":
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(recorded, "attempt", lambda device, record: record())
        monkeypatch.setattr(recorded, "room", lambda hidden, parameters: True)
        monkeypatch.setattr("coterie.inference.forget", lambda layer: forgotten(layer, replays))
        monkeypatch.setattr(
            recorded, "of", lambda layer, like, kind, new: replays.setdefault((weakref.ref(layer), kind), new())
        )
    yield made
    assert replay.Attempts.possible, replay.Attempts.why


def forgotten(layer, replays):
    for at in [at for at in replays if at[0]() is layer]:
        del replays[at]


def layer(**options):
    return make(WORDS, in_features=WIDTH, **options).to(DEVICE, DTYPE)


def batch(*shape):
    shape = shape or (TOKENS,)
    hidden = torch.randn(*shape, WIDTH, device=DEVICE, dtype=DTYPE).requires_grad_()
    return hidden, torch.randint(0, WORDS, shape, device=DEVICE)


def call(head, hidden, target):
    """The layer; without a GPU, past the question whether there is one."""
    if DEVICE == "cuda":
        return head(hidden, target)
    return HeadOutput(*recorded.step(head, *head._recorded(), head._step, hidden, target))


def warmed(**options):
    """A layer whose next step is replayed, and its twin, which is called as it is."""
    head = layer(**options)
    for _ in range(2):
        call(head, *batch())[1].sum().backward()
    head.zero_grad()
    return head, copy.deepcopy(head)


def usual(hidden, parameters):
    return recorded.recordable(hidden, parameters, parameters)


def gradients(head):
    return [parameter.grad for parameter in head.parameters()]


def same(found, expected):
    torch.testing.assert_close(found, expected, **CLOSE)
