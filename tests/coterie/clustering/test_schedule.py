"""When to reorganise: the laws of both schedules, on streams of targets, and that a layer keeps them."""

import copy
import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import SelfOrganizedSoftmax
from coterie.clustering.schedule import LEAST, AtIntervals, ByEvidence
from tests.layers import WIDTH, make

N_WORDS = 50
streams = st.lists(st.integers(0, 400), min_size=1, max_size=150)


class Run:
    """A schedule on a stream of targets for each update; reorganisations move the given shares of the text in turn."""

    def __init__(self, schedule, shares=(1.0,), seen=0, updates=0):
        self.schedule, self.shares = schedule, list(shares)
        self.seen, self.updates, self.reads = seen, updates, 0
        self.due: list[int] = []

    def read(self):
        self.reads += 1
        return self.seen

    def go(self, stream):
        for targets in stream:
            self.updates += 1
            self.seen += targets
            if self.schedule.is_due(self.updates, self.read):
                self.due.append(self.updates)
                self.seen = 0
                self.schedule.moved(self.updates, self.shares.pop(0) if len(self.shares) > 1 else self.shares[0])
        return self


def dues(stream, **options):
    return Run(ByEvidence(N_WORDS), **options).go(stream).due


# -- by evidence ----------------------------------------------------------------------------------------------------


def first_look(update):
    """The first update from this one on at which it looks."""
    while update % (1 << max(0, update.bit_length() - 6)):
        update += 1
    return update


@pytest.mark.parametrize("rate", [1, 7, 50, 199, 200, 201, 1000, 100_000])
def test_at_an_even_rate_it_is_due_at_the_first_look_with_enough(rate):
    schedule = ByEvidence(N_WORDS)
    run, update, expected = Run(schedule), 0, []
    for _ in range(8):
        needed = schedule.needed()
        update = first_look(update + max(LEAST, math.ceil(needed / rate)))
        expected.append(update)
        while len(run.due) < len(expected):
            run.go([rate])
        assert run.due == expected


@given(streams, st.data())
@settings(deadline=None)
def test_more_tokens_never_mean_fewer_reorganizations_nor_later_ones(stream, data):
    richer = [number + data.draw(st.integers(0, 300)) for number in stream]
    few, many = dues(stream), dues(richer)
    assert len(many) >= len(few)
    assert all(later <= sooner for later, sooner in zip(many, few, strict=False))
    assert dues(stream[:40]) == [update for update in few if update <= 40]  # nor does a longer run


@given(streams)
@settings(deadline=None)
def test_it_is_due_at_the_first_look_with_enough(stream):
    schedule = ByEvidence(N_WORDS)
    run, start, needed, targets = Run(schedule), 0, schedule.needed(), []
    for number in stream:
        targets.append(number)
        if len(run.go([number]).due) and run.due[-1] == run.updates:
            enough = next(n for n in range(1, len(targets) + 1) if sum(targets[:n]) >= needed)
            assert run.updates == first_look(start + max(LEAST, enough))
            start, needed, targets = run.updates, schedule.needed(), []
    assert sum(targets) < needed or first_look(run.updates) > run.updates or run.updates < start + LEAST


def test_it_looks_less_often_the_longer_the_run():
    run = Run(ByEvidence(10**9)).go([1] * 4096)
    assert run.reads <= 64 + 6 * 32


def test_more_is_needed_each_time_up_to_a_limit():
    schedule, needed = ByEvidence(N_WORDS), []
    for update in range(40):
        needed.append(schedule.needed())
        schedule.moved(update + 1, 1.0)
    assert 0 < needed[0] < needed[-1]
    assert needed == sorted(needed)
    assert needed[-1] == needed[-10]


def test_it_settles_once_little_moves_and_stays_settled():
    assert not ByEvidence(N_WORDS).settled
    run = Run(ByEvidence(N_WORDS), shares=[1.0, 0.9, 0.5, 0.0]).go([100_000] * 200)
    assert run.schedule.settled
    assert 4 < len(run.due) < 10
    due, reads = list(run.due), run.reads
    run.go([10**9] * 1000)
    assert (run.due, run.reads) == (due, reads)  # it does not even look


def test_it_does_not_settle_while_much_moves_now_and_then():
    always = [first_look(LEAST)]
    while (update := first_look(always[-1] + LEAST)) <= 2000:
        always.append(update)
    assert dues([100_000] * 2000, shares=[0.0, 1.0] * 2000) == always
    assert dues([100_000] * 2000, shares=[1.0]) == always


@given(streams, st.integers(0, 150), st.lists(st.sampled_from([0.0, 0.004, 1.0]), min_size=1))
@settings(deadline=None)
def test_it_resumes_bit_for_bit(stream, cut, shares):
    whole = Run(ByEvidence(N_WORDS), shares).go(stream)
    first = Run(ByEvidence(N_WORDS), shares).go(stream[:cut])
    resumed = ByEvidence(N_WORDS)
    resumed.state = tuple(torch.tensor(first.schedule.state, dtype=torch.int64).tolist())  # as a checkpoint keeps it
    second = Run(resumed, first.shares, first.seen, first.updates).go(stream[cut:])
    assert first.due + second.due == whole.due
    assert first.reads + second.reads == whole.reads
    assert second.schedule.state == whole.schedule.state


@given(streams, st.integers(0, 160))
@settings(deadline=None)
def test_none_comes_after_the_last_update_given_and_those_before_are_the_same(stream, until):
    found = Run(ByEvidence(N_WORDS, until)).go(stream).due
    assert found == [update for update in dues(stream) if update <= until]


# -- at intervals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("until", [None, 0, 9, 10, 30])
@pytest.mark.parametrize("every", [1, 3, 10, None])
def test_at_intervals_it_is_every_so_many_updates_and_never_reads(every, until):
    run = Run(AtIntervals(every, until), shares=[0.0]).go([0] * 40)
    last = 40 if until is None else until
    assert run.due == ([] if every is None else list(range(every, last + 1, every)))
    assert run.reads == 0
    assert run.schedule.state == ()


# -- in a layer -----------------------------------------------------------------------------------------------------


def update(head, tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, head.n_classes, (tokens,), generator=generator)
    head(torch.randn(tokens, WIDTH, generator=generator), target)
    return head.step()


def updates(head, number, tokens):
    for _ in range(number):
        update(head, tokens)


def test_a_layer_reorganizes_as_its_schedule_says():
    """Of several batches an update all targets count; those ignored, or of evaluation, do not."""
    head, expected = make(53), Run(ByEvidence(53))
    assert head.reorganize_every == "auto"
    for number in range(1, 60):
        hidden, target = torch.randn(30, WIDTH), torch.randint(0, 53, (30,))
        target[:10] = -100
        head(hidden, target)
        head.eval()(hidden, target)
        head.train()
        result = update(head, 11, number)
        expected.shares = [1.0 if result is None else result.share_of_mass]
        expected.go([20 + 11])
        assert (result is not None) == (expected.due[-1:] == [number])
        assert head.tally.targets() == expected.seen
    assert len(expected.due) > 3


def test_reorganizing_by_hand_begins_to_count_anew():
    head = make(53)
    update(head, 150)
    head.reorganize()
    assert head.tally.targets() == 0
    needed = head.schedule.needed()
    for _ in range(LEAST - 1):
        assert update(head, 1) is None
    assert update(head, needed - LEAST) is None
    assert head.tally.targets() == needed - 1
    assert update(head, 1) is not None


def test_a_reorganization_without_room_is_not_tried_again_at_every_update():
    head = make(counts=torch.ones(53).long())
    head.frequency_budget = 0.01
    with pytest.warns(UserWarning, match="the clusters stay as they are") as warned:
        updates(head, LEAST, 500)
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        updates(head, 3 * LEAST, 1)  # too little to try again
    with pytest.warns(UserWarning, match="the clusters stay as they are"):
        updates(head, 4 * LEAST, 500)


@pytest.mark.parametrize("options", [{}, {"counts": None}, {"reorganize_every": 7}, {"reorganize_until": 20}])
@pytest.mark.parametrize("cut", [1, 5, 9, 20])
def test_a_layer_resumes_bit_for_bit(options, cut):
    head = SelfOrganizedSoftmax(WIDTH, 53, **{"counts": torch.arange(53) ** 3, **options})
    results = [update(head, 30, number) for number in range(cut)]
    again = SelfOrganizedSoftmax(WIDTH, 53, **{"counts": torch.arange(53) ** 3, **options})
    again.load_state_dict(copy.deepcopy(head.state_dict()))
    for number in range(cut, 40):
        results.append(update(head, 30, number))
        assert update(again, 30, number) == results[-1]
        assert torch.equal(again.get_extra_state(), head.get_extra_state())
        assert torch.equal(again.partition.cluster_of, head.partition.cluster_of)
    assert sum(result is not None for result in results) >= 2


def test_the_state_of_another_schedule_gives_only_the_updates():
    head = make(reorganize_every=4)
    for number in range(6):
        update(head, 30, number)
    other = make()
    before = other.schedule.state
    other.load_state_dict(head.state_dict())
    assert other.updates == 6
    assert other.schedule.state == before
