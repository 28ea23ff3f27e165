"""Work spread over the cores, and memory of large pages."""

import threading

import pytest
import torch

from coterie import SelfOrganizedSoftmax, cpu
from tests.layers import make

CLASSES, TOKENS = 600, 40


def layer(seed: int = 0, own_words: int = 0):
    torch.manual_seed(seed)
    return make(CLASSES, in_features=8, reorganize_every=None, own_words=own_words)


def batch(seed: int):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(TOKENS, 8, generator=generator), torch.randint(0, CLASSES, (TOKENS,), generator=generator)


def loss_of(head, seed: int) -> torch.Tensor:
    return head(*batch(seed)).loss


def expected(head, seed: int) -> torch.Tensor:
    """The batch's gradient of the word vectors, by the reference."""
    other = make(CLASSES, in_features=8, reorganize_every=None, partition=head.partition, backend="reference")
    other.load_state_dict(head.state_dict())
    loss_of(other, seed).backward()
    return other.weight.grad


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.setattr("coterie.loss.cpu.FEW", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("own_words", [0, 50])
def test_threads_change_nothing(two_threads, monkeypatch, grad, own_words):
    head = layer(own_words=own_words)
    seen = set()
    original = cpu._until_empty

    def watch(queue):
        seen.add(threading.get_ident())
        return original(queue)

    monkeypatch.setattr(cpu, "_until_empty", watch)
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
    cpu._pool.cache_clear()
    loss_of(layer(), 0)
    assert torch.get_num_threads() == 2
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert elsewhere == [2]
    assert list(cpu._pool(2).map(lambda _: torch.get_num_threads(), range(2))) == [1, 1]


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
        cpu.spread(work, range(8), 2)


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

    monkeypatch.setattr(cpu.ctypes, "CDLL", System)
    return calls


def test_a_large_word_matrix_asks_for_large_pages_of_its_own_memory_alone(advised):
    head = SelfOrganizedSoftmax(64, 40_000)
    ((first, n_bytes, advice),) = advised
    begin = head.weight.data_ptr()
    assert advice == cpu.HUGE_PAGES
    assert first % cpu.PAGE == n_bytes % cpu.PAGE == 0
    assert begin <= first < begin + cpu.PAGE
    assert begin + head.weight.nbytes - cpu.PAGE < first + n_bytes <= begin + head.weight.nbytes


def test_small_matrices_and_other_devices_are_left_alone(advised, monkeypatch):
    monkeypatch.setattr(cpu, "LARGE", 4 << 20)
    SelfOrganizedSoftmax(8, 1000)
    cpu.in_large_pages(torch.empty(1 << 24, device="meta"))
    assert advised == []


def test_advice_that_is_not_taken_changes_nothing(monkeypatch):
    monkeypatch.setattr(cpu.ctypes, "CDLL", lambda name: object())
    matrix = torch.empty(1 << 22)
    assert cpu.in_large_pages(matrix) is matrix
