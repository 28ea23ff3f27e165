"""A step by its recording is the step: whatever a user does between forward and backward, or with a gradient.

Without a GPU a stand-in does what two CUDA graphs do: it computes into memory of its own, the same every time.
"""

import copy
import gc
import weakref
from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from coterie import recorded, replay
from coterie.head import HeadOutput
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


@pytest.fixture(autouse=True)
def kept(monkeypatch):
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
        monkeypatch.setattr("coterie.answers.forget", lambda layer: forgotten(layer, replays))
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


@pytest.mark.parametrize(
    "options",
    [{}, {"projection": False}, {"label_smoothing": 0.1}, {"counts": None}, {"statistic": "table"}, {"bias": False},
     {"reduction": "sum"}, {"reorganize_every": None}, {"activation": "relu"}],
)  # fmt: skip
def test_a_recorded_step_is_the_step(kept, options):
    head, twin = warmed(**options)
    for number in range(6):
        hidden, target = batch()
        target[:3] = torch.tensor([-100, target[4], target[5]])
        own = hidden.detach().clone().requires_grad_()
        found, expected = call(head, hidden, target), twin._step(own, target)
        found.loss.backward()
        expected[1].backward()
        same((*found, hidden.grad, *gradients(head)), (*expected, own.grad, *gradients(twin)))
        for one in (head, twin):
            with torch.no_grad():
                for parameter in one.parameters():
                    parameter.sub_(parameter.grad, alpha=0.1)
            one.zero_grad()
            one.step()
        if number == 3 and head.statistic is not None:
            assert head.reorganize() == twin.reorganize()
    same(list(head.state_dict().values()), list(twin.state_dict().values()))
    assert head.measures() == twin.measures()
    assert len(kept) == 1
    assert kept[0].lends


def test_a_gradient_lies_where_it_was_written(kept):
    head, _ = warmed()
    call(head, *batch()).loss.backward()
    places = {part.data_ptr() for part in kept[0].gradients}
    assert {gradient.data_ptr() for gradient in gradients(head)} < places


def test_two_forwards_before_their_backwards(kept):
    head, twin = warmed()
    batches = [batch(), batch()]
    both = [call(head, *given).loss for given in batches]
    for loss in both:
        loss.backward()
    found = [hidden.grad.clone() for hidden, _ in batches] + gradients(head)
    for hidden, target in batches:
        hidden.grad = None
        twin._step(hidden, target)[1].backward()
    same(found, [hidden.grad for hidden, _ in batches] + gradients(twin))
    assert not kept[0].awaited()


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_of_several_batches_are_summed(kept, to_none):
    head, twin = warmed()
    for _ in range(3):
        for one in (head, twin):
            one.zero_grad(set_to_none=to_none)
        for _ in range(3):
            hidden, target = batch()
            call(head, hidden, target).loss.backward()
            twin._step(hidden.detach(), target)[1].backward()
        same(gradients(head), gradients(twin))
    assert head.measures().tokens == twin.measures().tokens  # what was computed again was not counted again
    assert [recording.lends for recording in kept] == [True, False]  # and no third


def test_a_gradient_that_is_held_stays_as_it_is():
    head, _ = warmed()
    hidden, target = batch()
    held = torch.autograd.grad(call(head, hidden, target).loss, [hidden, *head.parameters()])
    before = [gradient.clone() for gradient in held]
    for _ in range(3):
        call(head, *batch()).loss.backward()
    assert all(torch.equal(*pair) for pair in zip(held, before, strict=True))


@pytest.mark.parametrize("held", [True, False])
def test_the_same_graph_twice(held):
    head, twin = warmed()
    hidden, target = batch()
    loss = call(head, hidden, target).loss
    parameters = list(head.parameters())
    once = torch.autograd.grad(loss, parameters, retain_graph=True)
    expected = torch.autograd.grad(twin._step(hidden, target)[1], list(twin.parameters()))
    same(once, expected)
    if not held:
        del once
    later = call(head, *batch()).loss  # must not write over what the second backward reads
    same(torch.autograd.grad(loss, parameters), expected)
    later.backward()


def test_of_a_forward_without_a_backward_nothing_is_left(kept):
    head, _ = warmed()
    loss = call(head, *batch()).loss
    assert kept[0].awaited()
    del loss
    assert not kept[0].awaited()
    loss = call(head, *batch()).loss
    loss.backward()
    assert not kept[0].awaited()  # though the loss is still there


def test_a_result_is_not_written_over():
    head, _ = warmed()
    output, loss = call(head, *batch())
    before = output.clone(), loss.clone()
    loss.backward()
    call(head, *batch())
    assert torch.equal(output, before[0])
    assert torch.equal(loss, before[1])


@pytest.mark.parametrize("used", ["output", "both", "loss"])
def test_whatever_is_differentiated(used):
    head, twin = warmed()
    for _ in range(3):
        for one, results in ((head, call(head, *(given := batch()))), (twin, twin._step(*given))):
            one.zero_grad()
            weights = torch.linspace(0, 1, TOKENS, device=DEVICE, dtype=DTYPE)
            terms = {"output": (results[0] * weights).sum(), "loss": results[1]}
            (sum(terms.values()) if used == "both" else terms[used]).backward()
        same(gradients(head), gradients(twin))


def test_one_way_after_the_other():
    head, twin = warmed()
    for used in (0, 1, 0, 1):
        given = batch()
        for one, results in ((head, call(head, *given)), (twin, twin._step(*given))):
            one.zero_grad()
            results[used].sum().backward()
        same(gradients(head), gradients(twin))


def test_a_parameter_put_in_place_of_another_gets_the_gradient():
    head, _ = warmed()
    old, head.weight = head.weight, nn.Parameter(head.weight.data)  # the same memory
    call(head, *batch()).loss.backward()
    assert old.grad is None
    assert head.weight.grad is not None


def test_a_parameter_put_in_place_of_another_before_the_backward(kept):
    head, twin = warmed()
    hidden, target = batch()
    for held in (False, True):
        loss, expected = call(head, hidden, target).loss, twin._step(hidden.detach(), target)[1]
        old, head.bias = head.bias, nn.Parameter(torch.zeros_like(head.bias))
        if held:  # the next gradients would have to be computed again, with what is no longer there
            with pytest.raises(RuntimeError, match="put in place of another"):
                loss.backward()
            return
        loss.backward()
        expected.backward()
        same(old.grad, twin.bias.grad)
        assert head.bias.grad is None
        head.bias = old


def test_frozen_parameters_have_no_gradient():
    head, _ = warmed()
    for frozen in (head.weight, head.cluster_weight):
        frozen.requires_grad_(False)
        for _ in range(4):
            hidden, target = batch()
            head.zero_grad()
            call(head, hidden, target).loss.backward()
            assert frozen.grad is None
            assert all((parameter.grad is not None) == parameter.requires_grad for parameter in head.parameters())
            assert hidden.grad is not None
    call(head, hidden.detach(), target).loss.backward()


def test_a_parameter_changed_before_the_backward_is_told():
    head, _ = warmed()
    loss = call(head, *batch()).loss
    with torch.no_grad():
        head.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_clusters_changed_before_the_backward_are_told(kept):
    head, _ = warmed()
    loss = call(head, *batch()).loss
    kept[0].backward = Again(lambda: None)  # a graph does not look
    head.partition.assign_(head.partition.cluster_of.roll(1))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_parameter_moved_before_the_backward_is_read_where_it_is(kept):
    head, twin = warmed()
    hidden, target = batch()
    loss = call(head, hidden, target).loss
    old = head.weight.data
    head.weight.data = old.clone()
    old.fill_(torch.nan)
    kept[0].finish = None  # would read what is no longer there
    loss.backward()
    twin._step(hidden.detach(), target)[1].backward()
    same(gradients(head), gradients(twin))


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_whether_a_parameter_is_trained_was_said_before_the_forward(frozen, held):
    head = layer()
    head.bias.requires_grad_(frozen)
    for _ in range(3):
        head.zero_grad()
        call(head, *batch()).loss.backward()
    if not held:
        head.zero_grad()
    twin = copy.deepcopy(head)  # but for the gradients
    for mine, its in zip(head.parameters(), twin.parameters(), strict=True):
        its.grad = None if mine.grad is None else mine.grad.clone()
    hidden, target = batch()
    found, expected = call(head, hidden, target).loss, twin._step(hidden.detach(), target)[1]
    for one in (head, twin):
        one.bias.requires_grad_(not frozen)
    found.backward()
    expected.backward()
    same(gradients(head), gradients(twin))


def test_hooks_of_parameters_are_called_once():
    head, twin = warmed()
    for one in (head, twin):
        one.weight.register_hook(lambda gradient: 2 * gradient)
    for _ in range(4):  # one of them is computed again, as a gradient is held
        hidden, target = batch()
        call(head, hidden, target).loss.backward()
        twin._step(hidden.detach(), target)[1].backward()
        same(gradients(head), gradients(twin))


def test_nothing_is_asked_of_it_after_all():
    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, loss):
            return loss.clone()

        @staticmethod
        def backward(ctx, gradient):
            return None

    head, _ = warmed()
    Nothing.apply(call(head, *batch()).loss).backward()
    assert all(gradient is None for gradient in gradients(head))


def test_a_second_backward_and_second_derivatives_are_refused():
    head, _ = warmed()
    hidden, target = batch()
    loss = call(head, hidden, target).loss
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(loss, hidden, create_graph=True)
    loss = call(head, hidden, target).loss
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_of_activations(reentrant):
    head, twin = warmed()
    for _ in range(3):
        hidden, target = batch()
        head.zero_grad()
        twin.zero_grad()
        checkpoint(lambda *given: call(head, *given).loss, hidden, target, use_reentrant=reentrant).backward()
        twin._step(hidden.detach(), target)[1].backward()
        same(gradients(head), gradients(twin))
    assert head.measures().tokens == twin.measures().tokens


@pytest.mark.parametrize("change", ["shape", "setting"])
def test_other_shapes_and_settings_have_recordings_of_their_own(kept, change):
    head, twin = warmed()
    if change == "setting":
        head.label_smoothing = twin.label_smoothing = 0.3
    for _ in range(3):
        hidden, target = batch(*(() if change == "setting" else (2, 5)))
        found, expected = call(head, hidden, target), twin._step(hidden, target)
        found.loss.backward()
        same(tuple(found), tuple(expected))
        head.zero_grad()
    assert len(kept) == 2


def test_not_where_somebody_watches_or_no_backward_will_come(kept):
    head = layer()
    hidden, _ = batch()
    parameters = tuple(head.parameters())
    assert usual(hidden, parameters)
    with torch.no_grad():
        assert not usual(hidden, parameters)
    with torch.autograd.graph.save_on_cpu():
        assert not usual(hidden, parameters)
    with FlopCounterMode(display=False):
        assert not usual(hidden, parameters)
    with torch.autograd.set_detect_anomaly(True):  # looks at every number
        assert not usual(hidden, parameters)
    assert not usual(hidden.detach(), tuple(part.detach() for part in parameters))
    assert not usual(hidden, (hidden.detach()[1:],))  # a part of another tensor
    assert not usual(nn.Parameter(hidden), parameters)
    seen = []  # what is computed in a backward is computed again

    def look(_):
        with torch.enable_grad():
            seen.append(usual(hidden, parameters))

    twice = hidden * 2
    twice.register_hook(look)
    twice.sum().backward()
    assert seen == [False]


def test_not_of_parameters_so_large_that_launching_does_not_count(monkeypatch):
    head = layer()
    with monkeypatch.context() as patch:
        patch.setattr(recorded, "LARGEST", 100)
        assert not usual(batch()[0], tuple(head.parameters()))
    assert usual(batch()[0], tuple(head.parameters()))
    monkeypatch.setattr(recorded, "LONGEST", 100)
    assert not usual(batch()[0], tuple(head.parameters()))


def test_not_of_weights_that_are_no_parameters():
    head = layer()
    weight = head._parameters.pop("weight")
    object.__setattr__(head, "weight", weight.view_as(weight))  # as those that several devices share may be
    assert not recorded.recordable(batch()[0], tuple(head.parameters()), head._recorded()[1].parameters)


def test_not_without_room_for_it(kept, monkeypatch):
    monkeypatch.setattr(recorded, "room", lambda hidden, parameters: False)
    head, twin = warmed()
    hidden, target = batch()
    same(tuple(call(head, hidden, target)), twin._step(hidden, target))
    assert not kept


def test_a_step_is_recorded_when_it_comes_again(kept):
    head = layer()
    for made in (0, 1, 1):
        call(head, *batch()).loss.backward()
        assert len(kept) == made


def test_no_more_recordings_than_there_is_memory_for(kept):
    head = layer()
    for tokens in (3, 4, 5):
        for _ in range(3):
            call(head, *batch(tokens)).loss.backward()
            head.zero_grad()
    assert len(kept) == recorded.MOST


def test_a_layer_that_is_gone_is_not_kept():
    head, _ = warmed()
    loss = call(head, *batch()).loss
    gone = weakref.ref(head)
    del head
    gc.collect()
    assert gone() is None
    loss.backward()  # nobody holds a gradient: it needs no layer


def test_of_a_layer_that_is_moved_nothing_is_kept(kept):
    head, _ = warmed()
    recording = weakref.ref(kept.pop())
    head.to(DTYPE)
    gc.collect()
    assert recording() is None


@pytest.mark.parametrize("fails", [False, True])
def test_parameters_are_back_when_a_recording_is_over(fails):
    head = layer()
    before = dict(head.named_parameters())
    doubles = tuple(part.detach().requires_grad_() for part in before.values())
    hidden, target = batch()
    expected = head._step(hidden, target)
    with suppress(KeyError), recorded.standing_in(head, tuple(before.values()), doubles):
        found = head._step(hidden, target)
        found[1].backward()
        if fails:
            raise KeyError
    same(found, expected)
    assert all(double.grad is not None for double in doubles)
    assert all(part is before[name] and part.grad is None for name, part in head.named_parameters())


@on_a_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_inside_of_an_autocast(kept, dtype):
    head, twin = warmed()
    kept.clear()
    for _ in range(5):
        hidden, target = batch()
        for one in (head, twin):
            one.zero_grad()
        with torch.autocast("cuda", dtype):
            found, expected = head(hidden, target), twin._step(hidden.detach(), target)
        found.loss.backward()
        expected[1].backward()
        torch.testing.assert_close((*found, *gradients(head)), (*expected, *gradients(twin)), rtol=2e-2, atol=2e-3)
        with torch.no_grad():  # rounded copies must be made anew
            for one in (head, twin):
                for parameter in one.parameters():
                    parameter.mul_(0.9)
    assert len(kept) == 1


@on_a_gpu
def test_a_hook_on_the_projection_is_called(kept):
    head, _ = warmed()
    seen = []
    head.projection.register_forward_hook(lambda *given: seen.append(1))
    for _ in range(4):
        head(*batch()).loss.backward()
    assert len(seen) == 4


@on_a_gpu
@pytest.mark.parametrize("options", [{}, {"projection": False}])
def test_a_model_trains_the_same(kept, options):
    """The way users write it: an embedding, something between, a loop; in bfloat16, many tokens."""

    def trained(often):
        recorded.OFTEN = often
        torch.manual_seed(0)
        embedding = nn.Embedding(5_000, 64, device="cuda", dtype=torch.bfloat16)
        head = make(5_000, in_features=64, **options).to("cuda", torch.bfloat16)
        optimizer = torch.optim.SGD([*embedding.parameters(), *head.parameters()], lr=0.5)
        losses = []
        for _ in range(30):
            words = torch.randint(0, 5_000, (4, 200), device="cuda")
            optimizer.zero_grad()
            loss = head(embedding(words).tanh(), words.roll(1, 1)).loss
            loss.backward()
            optimizer.step()
            head.step()
            losses.append(loss.detach())
        return torch.stack(losses), embedding.weight.detach(), head.weight.detach()

    often = recorded.OFTEN
    try:
        plain, found = trained(10**9), trained(3)
    finally:
        recorded.OFTEN = often
    assert len(kept) == 1
    torch.testing.assert_close(found, plain, rtol=1e-2, atol=1e-2)
