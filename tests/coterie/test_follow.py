"""Counting updates without a call in the training loop: hooks of optimizers, skipped updates, replayed graphs."""

import warnings

import pytest
import torch

from coterie import SelfOrganizedSoftmax, graphs
from tests.layers import WIDTH

N = 30


def layer(**options):
    return SelfOrganizedSoftmax(WIDTH, N, **{"reorganize_every": 3, **options})


def batch():
    return torch.randn(8, WIDTH), torch.randint(0, N, (8,))


def test_every_update_counts_and_accumulated_batches_once():
    head, moves = layer(), []
    optimizer = torch.optim.SGD(head.parameters(), 0.1)
    handle = head.follow(optimizer, moves.append)
    for _ in range(6):
        for _ in range(4):
            head(*batch()).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert head.updates == 6
    assert len(moves) == 2
    assert all(move.words_moved >= 0 for move in moves)
    handle.remove()
    optimizer.step()
    assert head.updates == 6


class Wrapper(torch.optim.Optimizer):
    """Calls the optimizer inside it, and has not been made as an optimizer is, like Accelerate's."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self, closure=None):
        self.optimizer.step(closure)


def test_an_optimizer_may_be_wrapped():
    head = layer()
    optimizer = Wrapper(Wrapper(torch.optim.SGD(head.parameters(), 0.1)))
    head.follow(optimizer)
    head(*batch()).loss.backward()
    optimizer.step()
    assert head.updates == 1


class Told(torch.optim.SGD):
    """Decides by itself, as a fused optimizer does; here it never changes anything."""

    def step(self, closure=None):
        pass


def test_updates_that_a_scaler_skips_do_not_count():
    """A fused optimizer is called all the same, and told by a tensor that must not be waited for."""
    head = layer(reorganize_every=4)
    optimizer = Told(head.parameters(), 0.1)
    head.follow(optimizer)
    moved_at = []
    for call in range(12):
        head(*batch()).loss.backward()
        optimizer.found_inf = torch.tensor(1.0 if call in (1, 2, 5) else 0.0)
        before = head.schedule.until, head.partition.cluster_of.clone()
        optimizer.step()
        del optimizer.found_inf
        if not torch.equal(before[1], head.partition.cluster_of):
            moved_at.append(call)
    # 9 updates were made: words move after the fourth and the eighth, which the seventh and the eleventh call made.
    assert moved_at == [6, 10]
    assert int(head.get_extra_state()[0]) == 9
    again = layer(reorganize_every=4)
    again.load_state_dict(head.state_dict())
    assert again.updates == 9


def test_a_scaler_that_does_not_call_the_optimizer_counts_nothing():
    head = layer()
    optimizer = torch.optim.SGD(head.parameters(), 0.1)
    head.follow(optimizer)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(head(*batch()).loss * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert head.updates == 0
    optimizer.zero_grad()
    scaler.scale(head(*batch()).loss).backward()
    scaler.step(optimizer)
    assert head.updates == 1


def test_a_captured_step_counts_at_every_replay(monkeypatch):
    head, calls = layer(), []
    optimizer = torch.optim.SGD(head.parameters(), 0.1)
    head.follow(optimizer)
    monkeypatch.setattr(graphs, "_recording", calls)  # as while a graph is recorded
    head(*batch()).loss.backward()
    optimizer.step()
    assert (head.updates, len(calls)) == (0, 1)
    monkeypatch.undo()
    for call in calls * 3:  # as after each of three replays
        call()
    assert head.updates == 3


def test_nothing_is_called_after_replays_that_nobody_records():
    assert not graphs.after_replay(lambda: None)


def test_a_layer_that_sees_no_update_says_so_once():
    head = layer(reorganize_every="auto")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(199):
            head(*batch())
    with pytest.warns(UserWarning, match=r"200 training batches and no update: .*head.follow\(optimizer\)"):
        head(*batch())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(300):
            head(*batch())
        head.eval()


@pytest.mark.parametrize("quiet", ["steps", "fixed", "evaluation"])
def test_nobody_else_is_reminded(quiet):
    head = layer(reorganize_every=None if quiet == "fixed" else 500)
    head.train(quiet != "evaluation")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(250):
            head(*batch())
            if quiet == "steps" and n % 50 == 49:
                head.step()
