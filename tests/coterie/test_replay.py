"""Questions that are asked often: recorded once, replayed, and never answered from a layer as it was before.

What is recorded on a GPU needs one; when something is recorded does not.
"""

import copy
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from coterie import replay
from coterie.replay import MOST, OFTEN, Replay
from tests.layers import make

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def asked(times, *, key="question", where=(1,), made=None):
    """What a replay is asked that many times answers, and how often it recorded."""
    recorded = []

    def record(work, given):
        recorded.append(given)
        return lambda *given: ("recording", *given)

    made = made or Replay(lambda: record)
    answers = [made.answer(key, where, lambda *given: ("work", *given), (number,)) for number in range(times)]
    return made, answers, recorded


@pytest.fixture
def by_itself(monkeypatch):
    """Whatever threads whoever runs the tests may have."""
    monkeypatch.setattr(replay, "alone", lambda: True)


def test_what_is_asked_often_is_recorded_once(by_itself):
    _, answers, recorded = asked(OFTEN + 3)
    assert answers[:OFTEN] == [("work", number) for number in range(OFTEN)]
    assert answers[OFTEN:] == [("recording", number) for number in range(OFTEN, OFTEN + 3)]
    assert recorded == [(OFTEN - 1,)]


def test_other_memory_forgets_all_recordings(by_itself):
    made, _, recorded = asked(OFTEN)
    _, answers, _ = asked(2, where=(2,), made=made)
    assert answers == [("work", 0), ("work", 1)]
    _, answers, _ = asked(OFTEN + 1, where=(1,), made=made)
    assert [each for each, _ in answers[-2:]] == ["work", "recording"]
    assert len(recorded) == 2


def test_other_memory_takes_another_recorder(by_itself):
    recorders = []
    made = Replay(lambda: recorders.append(1) or (lambda work, given: lambda *given: len(recorders)))
    asked(OFTEN, made=made)
    at_first = len(recorders)
    asked(OFTEN, key="other", made=made)
    assert len(recorders) == at_first  # recordings of the same memory share what they need
    asked(OFTEN, where=(2,), made=made)
    assert len(recorders) == at_first + 1


def test_no_more_is_recorded_than_there_is_room_for(by_itself):
    made, _, _ = asked(0)
    for key in range(MOST + 2):
        asked(OFTEN, key=key, made=made)
    assert len(made.recordings) == MOST
    assert asked(1, key=MOST + 1, made=made)[1] == [("work", 0)]
    assert asked(1, key=0, made=made)[1] == [("recording", 0)]


def test_what_cannot_be_recorded_is_done_as_it_is(by_itself):
    made = Replay(lambda: lambda work, given: None)
    assert asked(OFTEN + 2, made=made)[1][-1] == ("work", OFTEN + 1)


@pytest.fixture
def busy():
    """A thread that might do anything."""
    wait = threading.Event()
    thread = threading.Thread(target=wait.wait)
    thread.start()
    yield thread
    wait.set()
    thread.join()


def test_nothing_is_recorded_while_other_threads_are_at_work(busy, monkeypatch):
    made, answers, recorded = asked(OFTEN + 2)
    assert not recorded
    assert answers[-1] == ("work", OFTEN + 1)
    monkeypatch.setattr(replay, "alone", lambda: True)
    asked(OFTEN, made=made)
    assert len(recorded) == 1


@pytest.fixture
def there(monkeypatch):
    """Only these threads and this one are there: whoever runs the tests may have others."""
    return lambda threads: monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread(), *threads])


def test_threads_that_are_known_do_not_count(monkeypatch, there):
    class Monitor(threading.Thread):
        pass

    monkeypatch.setattr(Monitor, "__module__", "tqdm._monitor")
    wait = threading.Event()
    monitor = Monitor(target=wait.wait)
    monitor.start()
    try:
        there([monitor])
        assert replay.alone()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: None).result()
            there(pool._threads)
            assert not replay.alone()  # what it will be given next is not known
    finally:
        wait.set()
        monitor.join()


def test_a_compilers_threads_do_not_count(there):
    compilers = pytest.importorskip("torch._inductor.async_compile").AsyncCompile.pool()
    compilers.submit(lambda: None).result()
    there(compilers._threads)
    assert replay.alone()


def test_a_cpu_records_nothing(monkeypatch):
    monkeypatch.setattr(replay, "_replays", weakref.WeakKeyDictionary())
    monkeypatch.setattr(replay, "OFTEN", 1)
    head = make()
    head.topk(torch.randn(2, head.in_features), 3)
    assert not len(replay._replays)


# -- on a GPU -----------------------------------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(replay, "OFTEN", 2)


def layer(**options):
    return make(300, in_features=32, **options).to("cuda").eval()


def recordings(head):
    streams = replay._replays[head].values()
    return [each for stream in streams for each in stream.recordings.values() if each is not None]


def check(head, *shape, k=4):
    """Asked with other hidden vectors every time, a layer answers as the dense distribution does."""
    for _ in range(4):
        hidden = torch.randn(*shape, 32, device="cuda")
        values, words = head.topk(hidden, k)
        dense = head.log_prob(hidden)
        torch.testing.assert_close(values, dense.topk(k).values, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(dense.gather(-1, words), values, rtol=1e-4, atol=1e-4)


@on_a_gpu
@torch.no_grad()
def test_a_recording_answers_what_it_is_asked(soon):
    head = layer()
    check(head, 3)
    check(head, 2, 5)
    check(head)
    assert len(recordings(head)) == 3


@on_a_gpu
def test_answers_stay_as_they_were_given(soon):
    head, hidden = layer(), torch.randn(3, 32, device="cuda")
    first = [head.topk(hidden, 4) for _ in range(3)][-1]
    kept = [part.clone() for part in first]
    head.topk(-hidden, 4)
    assert all(torch.equal(part, copied) for part, copied in zip(first, kept, strict=True))


@on_a_gpu
@torch.no_grad()
def test_a_recording_reads_the_layer_as_it_is_now(soon):
    head = layer()
    check(head, 3)
    for parameter in head.parameters():
        parameter.mul_(0.7)
    check(head, 3)
    head.partition.assign_(head.partition.cluster_of.roll(1))
    check(head, 3)
    head.load_state_dict(layer().state_dict())
    check(head, 3)
    assert len(recordings(head)) == 1
    head.weight = nn.Parameter(torch.randn_like(head.weight))
    check(head, 3)
    head.to(torch.bfloat16).float()
    check(head, 3)
    head.projection.bias = nn.Parameter(torch.randn(64, device="cuda"))
    check(head, 3)
    head.projection.bias = nn.Parameter(torch.randn(64, device="cuda"))
    check(head, 3)


@on_a_gpu
@torch.no_grad()
def test_a_precision_set_in_a_new_way_is_no_trouble(soon):
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    try:
        check(layer(), 3)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


@on_a_gpu
@torch.no_grad()
def test_what_cannot_be_recorded_leaves_all_as_it_was(soon, monkeypatch):
    monkeypatch.setattr(replay.Attempts, "possible", True)
    hidden, stream = torch.randn(3, 32, device="cuda"), torch.cuda.current_stream()

    def waits(rows):
        rows.sum().item()  # not possible while a graph is recorded
        return (rows * 2,)

    head = layer()
    for _ in range(4):
        (twice,) = replay.replayed(head, "twice", (head.weight,), waits, hidden)
        assert torch.equal(twice, hidden * 2)
    assert not recordings(head)
    assert not replay.Attempts.possible
    assert torch.cuda.current_stream() == stream
    torch.cuda.empty_cache()  # fails where the allocator takes itself to be recorded
    check(head, 3)


@on_a_gpu
def test_whatever_a_recording_raises_it_is_given_up(monkeypatch):
    monkeypatch.setattr(replay.Attempts, "possible", True)
    assert replay.attempt(torch.device("cuda", 0), lambda: {}["no kernel"]) is None
    assert not replay.Attempts.possible


@on_a_gpu
@torch.no_grad()
def test_extensions_are_recorded_too(soon):
    head = layer()
    for _ in range(4):
        hidden, score = torch.randn(2, 3, 32, device="cuda"), -torch.rand(2, 3, device="cuda")
        values, hypothesis, word = head.extend(hidden, score, 5)
        dense = (head.log_prob(hidden) + score[..., None]).flatten(1)
        torch.testing.assert_close(values, dense.topk(5).values, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(dense.gather(1, hypothesis * 300 + word), values, rtol=1e-4, atol=1e-4)
    assert len(recordings(head)) == 1


@on_a_gpu
def test_an_inference_mode_makes_no_difference(soon):
    head = layer()
    with torch.inference_mode():
        check(head, 3)
    with torch.no_grad():
        check(head, 3)
    assert len(recordings(head)) == 1


@on_a_gpu
@torch.no_grad()
def test_an_autocast_is_never_recorded(soon):
    head, hidden = layer(), torch.randn(3, 32, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        for _ in range(4):
            head.topk(hidden, 3)
    assert head not in replay._replays


@on_a_gpu
@torch.no_grad()
def test_a_search_can_be_part_of_a_users_graph(soon):
    head, hidden = layer(), torch.randn(3, 32, device="cuda")
    check(head, 3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values, _ = head.topk(hidden, 4)
    hidden.copy_(torch.randn_like(hidden))
    graph.replay()
    torch.testing.assert_close(values, head.log_prob(hidden).topk(4).values, rtol=1e-4, atol=1e-4)


@on_a_gpu
@torch.no_grad()
@pytest.mark.parametrize("own_stream", [False, True])
def test_threads_get_their_own_answers(soon, own_stream):
    head, wrong = layer(), []
    check(head, 3)
    assert len(recordings(head)) == 1

    def ask():
        stream = torch.cuda.Stream() if own_stream else torch.cuda.default_stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            try:
                for _ in range(10):
                    check(head, 3)
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@on_a_gpu
def test_a_layer_that_is_gone_leaves_nothing(soon):
    head = layer()
    check(head, 3)
    assert copy.deepcopy(head) not in replay._replays
    gone = weakref.ref(head)
    del head
    gc.collect()
    assert gone() is None
