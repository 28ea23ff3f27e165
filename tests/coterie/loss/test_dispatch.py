"""The whole layer with the Triton backend; without a GPU its kernels run in the interpreter."""

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.checkpoint import checkpoint

pytest.importorskip("triton")

from coterie.loss import dispatch, triton
from tests.coterie.kernels.batches import DEVICE
from tests.layers import WIDTH, make

pytestmark = pytest.mark.usefixtures("interpreter", "new_memory_is_nan")


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_layers_two_results_may_be_used_together(reduction):
    hidden, target = torch.randn(4, 9, 24, device=DEVICE), torch.randint(0, 90, (4, 9), device=DEVICE)
    target[0, :4] = -100
    weights, gradients = torch.rand(4, 9, device=DEVICE), []
    for backend in ("triton", "torch"):
        torch.manual_seed(4)
        layer = make(90, in_features=24, backend=backend, reduction=reduction, own_words=20).to(DEVICE)
        output, loss = layer(hidden, target)
        (2 * loss + (output * weights).sum()).backward()
        gradients.append([parameter.grad for parameter in layer.parameters()])
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "options", [{}, {"label_smoothing": 0.1, "own_words": 20}, {"statistic": "table", "counts": None, "own_words": 5}]
)
def test_the_layer_trains_as_with_the_torch_backend(options):
    layers = []
    for backend in ("triton", "torch"):
        torch.manual_seed(4)
        layers.append(make(90, in_features=24, backend=backend, reorganize_every=2, **options).to(DEVICE))
    for _ in range(3):
        hidden, target = torch.randn(6, 9, 24, device=DEVICE), torch.randint(0, 90, (6, 9), device=DEVICE)
        target[0, :4] = -100
        losses = [layer(hidden, target).loss for layer in layers]
        torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)
        moved = []
        for layer, loss in zip(layers, losses, strict=True):
            layer.zero_grad()
            loss.backward()
            with torch.no_grad():
                for parameter in layer.parameters():
                    parameter -= 0.1 * parameter.grad
            moved.append(layer.step())
        assert moved[0] == moved[1]
    assert len(layers[0].partition.own) == options.get("own_words", 0)
    for x, y in zip(layers[0].state_dict().values(), layers[1].state_dict().values(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)
    assert layers[0].measures().perplexity == pytest.approx(layers[1].measures().perplexity, rel=1e-4)


def batch(layer, tokens=9):
    hidden = torch.randn(tokens, 24, device=DEVICE, requires_grad=True)
    return hidden, layer(hidden, torch.randint(0, 90, (tokens,), device=DEVICE)).loss


def test_a_backward_frees_what_it_needed_and_is_not_repeated_without_it():
    hidden, loss = batch(make(90, in_features=24, backend="triton").to(DEVICE))
    node = loss.grad_fn
    assert not [part for part in vars(node).values() if isinstance(part, torch.Tensor | tuple)]
    first, again = (torch.autograd.grad(loss, hidden, retain_graph=keep)[0] for keep in (True, False))
    assert torch.equal(first, again)
    with pytest.raises(RuntimeError, match="freed"):
        node.saved_tensors  # noqa: B018
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()


@pytest.mark.parametrize("name", ["projection", "cluster_weight", "cluster_bias", "weight", "bias"])
def test_a_parameter_that_changes_before_the_backward_is_noticed(name):
    layer = make(90, in_features=24, backend="triton").to(DEVICE)
    _, loss = batch(layer)
    with torch.no_grad():
        getattr(layer, name).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_second_derivatives_are_refused():
    hidden, loss = batch(make(90, in_features=24, backend="triton").to(DEVICE))
    with pytest.raises(RuntimeError, match='need backend="reference"'):
        torch.autograd.grad(loss, hidden, create_graph=True)


@pytest.mark.parametrize("frozen", ["projection", "cluster_weight", "weight", "bias"])
def test_what_is_frozen_gets_no_gradient_and_the_rest_its_own(frozen):
    layer = make(90, in_features=24, backend="triton", own_words=20).to(DEVICE)
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        layer.zero_grad()
        batch(layer)[1].backward()
        found.append({name: parameter.grad for name, parameter in layer.named_parameters()})
        getattr(layer, frozen).requires_grad_(False)
    assert found[1].pop(frozen) is None
    torch.testing.assert_close(found[1], {name: grad for name, grad in found[0].items() if name != frozen})


@pytest.mark.parametrize("reentrant", [True, False])
def test_under_activation_checkpointing_a_batch_counts_once(reentrant):
    layer, hidden = make(90, in_features=24, backend="triton").to(DEVICE), torch.randn(9, 24, device=DEVICE)
    target, gradients = torch.randint(0, 90, (9,), device=DEVICE), []
    for way in (layer, lambda *given: checkpoint(layer, *given, use_reentrant=reentrant)):
        own = hidden.clone().requires_grad_()
        way(own, target)[1].backward()
        gradients.append(own.grad)
    assert torch.equal(*gradients)
    assert layer.measures().tokens == 18


def test_the_layer_compiled_learns_the_same():
    torch._dynamo.reset()
    eager = make(90, in_features=24, backend="triton", counts=None, own_words=range(3, 20)).to(DEVICE)
    other = copy.deepcopy(eager)
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        hidden, target = torch.randn(9, 24, device=DEVICE), torch.randint(0, 90, (9,), device=DEVICE)
        target[3] = -100
        results = [module(hidden, target) for module in (eager, compiled)]
        torch.testing.assert_close(*results)
        gradients = []
        for head, (output, loss) in zip((eager, other), results, strict=True):
            head.zero_grad()
            (loss + output.sum()).backward()
            gradients.append([parameter.grad for parameter in head.parameters()])
        torch.testing.assert_close(*gradients)
    assert eager.meter.row()[2] == 2 * 8
    for one, another in zip(eager.buffers(), other.buffers(), strict=True):  # the measures and the tally too
        torch.testing.assert_close(one, another)


class Launches(TorchDispatchMode):
    """Notes PyTorch's operations that compute something."""

    FREE = ("empty", "new_empty", "empty_like", "view", "t", "permute", "split", "slice", "select", "expand", "detach")

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation.overloadpacket.__name__
        if name not in self.FREE:
            self.names.append(name)
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("own_words", [0, 20])
def test_a_step_is_kernels_and_products(monkeypatch, folded, own_words):
    """Whatever stands alone: the gradient of the word vectors is written once, and nothing is added to it."""
    monkeypatch.setattr(triton, "LARGE", 0 if folded else 2**23)
    layer = make(90, in_features=24, backend="triton", own_words=own_words).to(DEVICE)
    layer.step()
    monkeypatch.setattr(layer.tally, "look", lambda: None)  # on a CPU it looks at once
    if DEVICE == "cpu":
        from triton.runtime.interpreter import GridExecutor

        interpret = GridExecutor.__call__

        def unseen(*args, **kwargs):
            with _disable_current_modes():
                return interpret(*args, **kwargs)

        monkeypatch.setattr(GridExecutor, "__call__", unseen)
    hidden, target = torch.randn(40, 24, device=DEVICE), torch.randint(0, 90, (40,), device=DEVICE)
    with Launches() as forward:
        loss = layer(hidden.requires_grad_(), target).loss
    with Launches() as backward:
        torch.autograd.grad(loss, [hidden, *layer.parameters()])
    # Of the projection, then of the root; folded, one projection is of the root, and two gradients meet.
    assert forward.names == ["mm"] * (2 + folded)
    assert sorted(backward.names) == sorted(["ones_like"] + ["mm"] * 3 + ["addmm_"] * (1 + 2 * folded))


def test_the_kernels_are_refused_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(dispatch, "INTERPRETED", False)
    head = make(backend="triton")
    with pytest.raises(ValueError, match='computes on a GPU; hidden is on cpu: use backend="auto"'):
        head(torch.randn(3, WIDTH), torch.zeros(3, dtype=torch.int64))
