"""A step by its recording is the step, and a gradient somebody holds stays as it is."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from coterie import recorded
from tests.layers import make
from tests.recordings import (
    DEVICE,
    DTYPE,
    TOKENS,
    batch,
    call,
    gradients,
    on_a_gpu,
    recorded_at_once,  # noqa: F401
    same,
    warmed,
)


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
