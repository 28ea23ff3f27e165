"""Gradients in memory that is used again: nobody ever sees one change, and it is used again."""

import gc
import threading

import pytest
import torch

from coterie import SelfOrganizedSoftmax, memory
from coterie import cpu as workers
from tests.layers import make

CLASSES, TOKENS = 600, 40


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch):
    if memory.HUGE_PAGES is None:
        pytest.skip("memory is used again on Linux alone")
    monkeypatch.setattr(memory, "LARGE", 1)


def layer(seed: int = 0):
    torch.manual_seed(seed)
    return make(CLASSES, in_features=8, reorganize_every=None)


def batch(seed: int):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(TOKENS, 8, generator=generator), torch.randint(0, CLASSES, (TOKENS,), generator=generator)


def expected(head, *seeds: int) -> torch.Tensor:
    """The sum of the batches' gradients of the word vectors, by the reference."""
    other = make(CLASSES, in_features=8, reorganize_every=None, partition=head.partition, backend="reference")
    other.load_state_dict(head.state_dict())
    for seed in seeds:
        other(*batch(seed)).loss.backward()
    return other.weight.grad


def loss_of(head, seed: int) -> torch.Tensor:
    return head(*batch(seed)).loss


def address(head) -> int:
    return head.weight.grad.data_ptr()


def test_a_gradient_that_is_held_never_changes():
    head = layer()
    held = []
    for seed in range(4):
        head.zero_grad()
        loss_of(head, seed).backward()
        # Held as it is, as a view, and as an array.
        grad = head.weight.grad
        held.append((grad, grad[3:5], grad.numpy()))
    for seed, (grad, view, array) in enumerate(held):
        want = expected(head, seed)
        assert torch.allclose(grad, want, atol=1e-6)
        assert torch.allclose(view, want[3:5], atol=1e-6)
        assert torch.allclose(torch.from_numpy(array), want, atol=1e-6)


@pytest.mark.parametrize("keep", ["view", "array", "storage", "thread"])
def test_whatever_keeps_the_memory_keeps_the_numbers(keep):
    head = layer()
    loss_of(head, 0).backward()
    grad = head.weight.grad
    found = []
    may_look = threading.Event()
    if keep == "view":
        kept = grad.T[1]
    elif keep == "array":
        kept = grad.numpy()[:, 1]
    elif keep == "storage":
        kept = grad.untyped_storage()
    else:

        def look(grad: torch.Tensor) -> None:
            may_look.wait(10)
            found.append(grad.clone())

        kept = threading.Thread(target=look, args=(grad,))
        kept.start()
    del grad
    for seed in range(1, 4):
        head.zero_grad()
        loss_of(head, seed).backward()
    if keep == "thread":
        may_look.set()
        kept.join()
        assert torch.allclose(found[0], expected(head, 0), atol=1e-6)
    elif keep == "storage":
        assert torch.allclose(torch.empty(0).set_(kept).view(CLASSES, 8), expected(head, 0), atol=1e-6)
    else:
        assert torch.allclose(torch.as_tensor(kept), expected(head, 0)[:, 1], atol=1e-6)


def test_memory_is_used_again():
    head = layer()
    addresses = set()
    for seed in range(6):
        head.zero_grad()
        loss_of(head, seed).backward()
        addresses.add(address(head))
        assert torch.allclose(head.weight.grad, expected(head, seed), atol=1e-6)
    assert len(addresses) == 1


def test_memory_is_used_again_where_the_forward_comes_before_zero_grad():
    head = layer()
    addresses = set()
    for seed in range(6):
        loss = loss_of(head, seed)
        head.zero_grad()
        loss.backward()
        addresses.add(address(head))
    assert len(addresses) == 2


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_add_up(to_none):
    head = layer()
    for first in (0, 3):
        head.zero_grad(set_to_none=to_none)
        for seed in range(first, first + 3):
            loss_of(head, seed).backward()
        assert torch.allclose(head.weight.grad, expected(head, *range(first, first + 3)), atol=1e-6)


def test_what_a_user_wrote_into_a_gradient_is_gone():
    head = layer()
    loss_of(head, 0).backward()
    before = address(head)
    head.weight.grad.fill_(torch.nan)
    head.zero_grad()
    head(torch.randn(1, 8), torch.tensor([5])).loss.backward()  # one cluster has tokens
    assert address(head) == before
    assert torch.isfinite(head.weight.grad).all()
    assert not head.weight.grad[head.partition.cluster_of != head.partition.cluster_of[5]].any()


def test_two_layers_and_two_forwards_before_a_backward():
    one, other = layer(1), layer(2)
    for _ in range(3):
        losses = [loss_of(one, 0), loss_of(other, 1), loss_of(one, 2)]
        one.zero_grad()
        other.zero_grad()
        sum(losses).backward()
        assert torch.allclose(one.weight.grad, expected(one, 0, 2), atol=1e-6)
        assert torch.allclose(other.weight.grad, expected(other, 1), atol=1e-6)


def test_a_graph_that_is_kept():
    head = layer()
    loss = loss_of(head, 0)
    loss.backward(retain_graph=True)
    first = head.weight.grad
    head.weight.grad = None
    loss_of(head, 1).backward()
    head.weight.grad = None
    loss.backward()
    want = expected(head, 0)
    assert torch.allclose(first, want, atol=1e-6)
    assert torch.allclose(head.weight.grad, want, atol=1e-6)
    assert first.data_ptr() != address(head)


def test_memory_goes_with_the_layer():
    head = layer()
    loss_of(head, 0).backward()
    gc.collect()
    before = len(memory._pieces)
    del head
    gc.collect()
    assert len(memory._pieces) == before - 1


def test_idle_memory_is_bounded():
    head = layer()
    held = [torch.autograd.grad(loss_of(head, seed), head.weight)[0] for seed in range(6)]
    assert len({grad.data_ptr() for grad in held}) == 6
    held.clear()
    torch.autograd.grad(loss_of(head, 0), head.weight)
    assert len(memory._pieces[head.weight]) <= 1 + memory.IDLE


def test_a_gradient_is_an_ordinary_tensor():
    head = layer()
    loss_of(head, 0).backward()
    grad = head.weight.grad
    assert grad._base is None
    assert grad.is_contiguous()
    assert torch.allclose(grad.detach_().share_memory_(), expected(head, 0), atol=1e-6)


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.setattr("coterie.loss.clusters.FEW", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("grad", [True, False])
def test_threads_change_nothing(two_threads, monkeypatch, grad):
    head = layer()
    seen = set()
    original = workers._until_empty

    def watch(queue):
        seen.add(threading.get_ident())
        return original(queue)

    monkeypatch.setattr(workers, "_until_empty", watch)
    with torch.set_grad_enabled(grad):
        loss = loss_of(head, 0)
    assert seen
    assert threading.get_ident() not in seen
    torch.set_num_threads(1)
    assert torch.allclose(loss, loss_of(head, 0))
    if grad:
        loss.backward()
        assert torch.allclose(head.weight.grad, expected(head, 0), atol=1e-6)


def test_threads_leave_the_number_of_cores_alone(two_threads):
    workers._pool.cache_clear()
    loss_of(layer(), 0)
    assert torch.get_num_threads() == 2
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert elsewhere == [2]
    assert list(workers._pool(2).map(lambda _: torch.get_num_threads(), range(2))) == [1, 1]


def test_inference_mode_reaches_the_threads(two_threads):
    head = layer()
    with torch.inference_mode():
        assert torch.allclose(head(*batch(0)).loss, loss_of(head, 0))


def test_an_error_in_a_thread_is_raised(two_threads):
    def work(pieces):
        for piece in pieces:
            if piece == 3:
                raise ValueError("three")

    with pytest.raises(ValueError, match="three"):
        workers.spread(work, range(8), 2)


@pytest.fixture
def advised(monkeypatch):
    """What the system was advised about."""
    calls = []

    class System:
        def __init__(self, name):
            pass

        def madvise(self, first, n_bytes, advice):
            calls.append((first.value, n_bytes.value, advice))
            return 0

    monkeypatch.setattr(memory.ctypes, "CDLL", System)
    return calls


def test_a_large_word_matrix_asks_for_large_pages_of_its_own_memory_alone(advised):
    head = SelfOrganizedSoftmax(64, 40_000)
    ((first, n_bytes, advice),) = advised
    begin = head.weight.data_ptr()
    assert advice == memory.HUGE_PAGES
    assert first % memory.PAGE == n_bytes % memory.PAGE == 0
    assert begin <= first < begin + memory.PAGE
    assert begin + head.weight.nbytes - memory.PAGE < first + n_bytes <= begin + head.weight.nbytes


def test_small_matrices_and_other_devices_are_left_alone(advised, monkeypatch):
    monkeypatch.setattr(memory, "LARGE", 4 << 20)
    SelfOrganizedSoftmax(8, 1000)
    memory.in_large_pages(torch.empty(1 << 24, device="meta"))
    assert advised == []


def test_advice_that_is_not_taken_changes_nothing(monkeypatch):
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: object())
    matrix = torch.empty(1 << 22)
    assert memory.in_large_pages(matrix) is matrix
