"""Whatever a user does between the forward of a recorded step and its backward, or with its parameters."""

import copy

import pytest
import torch
from torch import nn

from tests.recordings import (
    Again,
    batch,
    call,
    gradients,
    layer,
    recorded_at_once,  # noqa: F401
    same,
    warmed,
)


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
