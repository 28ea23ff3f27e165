"""CUDA graphs, where somebody asks for them: they compute the same, say what they do, and refuse with a reason."""

import logging

import pytest
import torch

from coterie import SelfOrganizedSoftmax, graphs

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="records a CUDA graph: needs a GPU")


@pytest.fixture
def recorder(monkeypatch):
    """Stands in for CUDA, up to the replay."""

    class Stand:
        def __init__(self, *_, **__):
            pass

        def wait_stream(self, other):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    class Given(torch.Tensor):
        is_cuda = True

    Stand.capture_begin = Stand.capture_end = lambda self, *_, **__: None
    for name in ("Stream", "stream", "device", "CUDAGraph"):
        monkeypatch.setattr(torch.cuda, name, Stand)
    monkeypatch.setattr(torch.cuda, "current_stream", Stand)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "a pool")
    return lambda tensor: tensor.as_subclass(Given)


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(graphs.GraphError, match="there is none: run the function itself"):
        graphs.capture(lambda: None)


def test_tensors_elsewhere_are_refused(recorder):
    with pytest.raises(graphs.GraphError, match="got one on cpu: move it there first"):
        graphs.capture(lambda x: x, torch.zeros(2))


def test_it_warms_up_records_once_and_says_so(recorder, caplog):
    calls = []

    def doubled(x):
        calls.append(x.data_ptr())
        return x * 2

    given = recorder(torch.ones(2, 3))
    with caplog.at_level(logging.INFO, "coterie.graphs"):
        graph = graphs.capture(doubled, given, warm_up=2)
    assert len(calls) == 3
    assert given.data_ptr() not in calls  # its inputs are its own
    (line,) = caplog.messages
    assert "doubled for (2, 3) float32" in line
    assert len(graph.inputs) == 1


def test_a_call_copies_its_inputs_outside_of_autograd_replays_and_keeps_what_is_read():
    own, output = torch.zeros(3, requires_grad=True), torch.zeros(3)

    class Twice:
        def replay(self):
            output.copy_(2 * own.detach())

    graph = graphs.Graph(Twice(), layer := torch.nn.Linear(1, 1), (own,), output)
    given = torch.arange(3.0, requires_grad=True) * 3
    assert graph(given).tolist() == [0, 6, 12]
    assert own.grad_fn is None
    assert graph.function is layer


def test_other_shapes_and_numbers_of_tensors_are_refused(recorder):
    graph = graphs.capture(lambda x: x, recorder(torch.ones(2, 3)))
    with pytest.raises(ValueError, match=r"recorded with 1 tensor\(s\); got 2"):
        graph(torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"recorded for \(2, 3\) float32; got \(3, 2\) float32"):
        graph(torch.ones(3, 2))


def test_what_cannot_be_recorded_is_an_error_with_the_reason(recorder):
    def waits(x):
        if len(calls) == 1:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        calls.append(x)

    calls = []
    with pytest.raises(
        graphs.GraphError, match="waits cannot be recorded as a CUDA graph: operation not permitted when stream is capt"
    ):
        graphs.capture(waits, recorder(torch.ones(2)), warm_up=1)


@on_gpu
def test_a_training_step_is_the_same_by_its_graph():
    heads = []
    for _ in range(2):
        torch.manual_seed(0)
        heads.append(SelfOrganizedSoftmax(64, 5_000, reorganize_every=4, device="cuda"))
    batches = [(torch.randn(100, 64, device="cuda"), torch.randint(0, 5_000, (100,), device="cuda")) for _ in range(12)]

    def stepper(head):
        optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2, capturable=True)

        def step(hidden, target):
            optimizer.zero_grad(set_to_none=True)
            loss = head(hidden, target).loss
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    plain, recorded = map(stepper, heads)
    for batch in batches[:3]:
        plain(*batch)
        recorded(*batch)
    graph = graphs.capture(recorded, *batches[0], warm_up=0)
    for batch in batches[3:]:
        assert torch.equal(plain(*batch), graph(*batch))
        moved = [head.step() for head in heads]
        assert moved[0] == moved[1]
    for one, other in zip(heads[0].state_dict().values(), heads[1].state_dict().values(), strict=True):
        assert torch.equal(one, other)


@on_gpu
def test_a_search_is_the_same_by_its_graph():
    head = SelfOrganizedSoftmax(64, 5_000, device="cuda").eval()
    graph = graphs.capture(lambda rows: head.topk(rows, 7), torch.randn(3, 64, device="cuda"))
    for _ in range(3):
        rows = torch.randn(3, 64, device="cuda")
        for found, expected in zip(graph(rows), head.topk(rows, 7), strict=True):
            assert torch.equal(found, expected)


@on_gpu
def test_after_a_step_that_waits_for_the_device_all_goes_on_as_before():
    here, given = torch.cuda.current_stream(), torch.ones(3, device="cuda")
    for _ in range(2):
        with pytest.raises(graphs.GraphError, match="cannot be recorded as a CUDA graph"):
            graphs.capture(lambda x: (torch.rand_like(x) + x).sum().item(), given)
    with pytest.raises(TypeError):
        graphs.capture(lambda x: x + None, given, warm_up=0)
    assert torch.cuda.current_stream() == here
    assert torch.rand(5, device="cuda").min() >= 0
    assert torch.equal(graphs.capture(lambda x: 2 * x, given)(given), 2 * given)
    torch.cuda.empty_cache()
