"""Products of the cluster level on a second stream, inside a CUDA graph."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from coterie import SelfOrganizedSoftmax
from coterie.kernels import streams as module
from coterie.kernels.streams import Beside

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="records a CUDA graph: needs a GPU")


class Stream:
    """Writes down what waits for what."""

    def __init__(self, name, seen):
        self.name, self.seen = name, seen

    def wait_stream(self, other):
        self.seen.append(f"{self.name} waits for {other.name}")


@pytest.mark.parametrize("capturing", [False, True])
def test_the_side_waits_for_what_was_before_and_is_waited_for(monkeypatch, capturing):
    seen = []
    here, side = Stream("main", seen), Stream("side", seen)

    @contextmanager
    def stream(which):
        seen.append(f"on {which.name}")
        yield
        seen.append(f"off {which.name}")

    monkeypatch.setattr(module, "_streams", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: here)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    with Beside(SimpleNamespace(is_cuda=True, device="cuda:0", get_device=lambda: 0)) as beside:
        seen.append("small")
    seen.append("large")
    beside.join()
    around = ["side waits for main", "on side", "small", "off side", "large", "main waits for side"]
    assert seen == (around if capturing else ["small", "large"])


@on_gpu
@pytest.mark.parametrize("projection", [True, False])
@pytest.mark.parametrize("rounded", [True, False])
def test_a_recorded_step_is_the_step(projection, rounded):
    """`rounded`: the parameters themselves in bfloat16, or only in autocast."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if rounded else torch.float32
    head = SelfOrganizedSoftmax(256, 20_000, projection=projection, device="cuda", dtype=dtype)
    hidden = torch.randn(1_000, 256, device="cuda", dtype=dtype, requires_grad=True)
    target = torch.randint(0, 20_000, (1_000,), device="cuda")
    inputs = [hidden, *head.parameters()]

    def step():
        with torch.autocast("cuda", torch.bfloat16, enabled=not rounded):
            loss = head(hidden, target).loss
        return [loss.detach(), *torch.autograd.grad(loss, inputs)]

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            plain = step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = step()
    for _ in range(20):
        for result in recorded:
            result.fill_(torch.nan)
        graph.replay()
        torch.testing.assert_close(recorded, plain, rtol=1e-2, atol=1e-5)


@on_gpu
def test_the_layer_alone_can_be_recorded():
    torch.manual_seed(0)
    head = SelfOrganizedSoftmax(64, 5_000, device="cuda")
    hidden, target = torch.randn(100, 64, device="cuda"), torch.randint(0, 5_000, (100,), device="cuda")

    def step():
        head.zero_grad()
        own = hidden.clone().requires_grad_()
        output, loss = head(own, target)
        loss.backward()
        return [output.detach().clone(), loss.detach().clone(), own.grad, *(p.grad.clone() for p in head.parameters())]

    plain = step()
    torch.cuda.make_graphed_callables(head, (hidden.clone().requires_grad_(), target.clone()))
    assert all(torch.equal(*pair) for pair in zip(step(), plain, strict=True))
    target.random_(5_000)
    recorded = step()
    assert not torch.equal(recorded[0], plain[0])
    torch.testing.assert_close(recorded[1], -head.eval()(hidden, target).output.mean())
