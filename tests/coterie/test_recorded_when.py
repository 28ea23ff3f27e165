"""When a step is recorded, when not, and what is kept of it for how long."""

import gc
import weakref
from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from coterie import recorded
from tests.recordings import (
    DTYPE,
    batch,
    call,
    layer,
    recorded_at_once,  # noqa: F401
    same,
    usual,
    warmed,
)


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
