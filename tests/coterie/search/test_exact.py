"""Exact search: the best words for every k, and no more opened than must be."""

import pytest
import torch

from coterie import inference
from coterie.search import exact as search
from coterie.search.words import Words
from tests.layers import SHAPES, WIDTH, assert_best, make, with_empty_clusters, with_own_words

pytestmark = pytest.mark.usefixtures("no_vocabulary_is_small")


@pytest.mark.parametrize("shape", SHAPES)
def test_topk_equals_the_dense_one_for_every_k(shape):
    head = SHAPES[shape]()
    hidden = torch.randn(5, WIDTH)
    for k in range(1, head.n_classes + 1):
        assert_best(head.topk(hidden, k), head.log_prob(hidden), atol=1e-6)


@pytest.mark.parametrize("sharpness", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("own_words", [0, 5, 400])  # none, fewer than results, more than in any cluster
def test_topk_of_a_large_vocabulary_flat_and_peaked(sharpness, rows, own_words):
    head = make(3000, in_features=16, own_words=own_words)
    hidden = sharpness * torch.randn(rows, 16)
    for k in (1, 10, 100):
        assert_best(head.topk(hidden, k), head.log_prob(hidden))


@pytest.mark.parametrize("k, n_clusters", [(1, 9), (3, 60), (12, 3), (12, 60), (40, 9)])
def test_of_many_flat_rows_the_words_of_k_clusters_are_sorted_and_no_others(monkeypatch, k, n_clusters):
    head = with_empty_clusters(300, n_clusters, reorganize_every=None)
    check_only_the_clusters_of_the_best_are_sorted(head, k, monkeypatch)


@pytest.mark.parametrize("k", [1, 12, 100, 300])
@pytest.mark.parametrize("n_classes", [300, 2000])
def test_and_with_them_the_words_that_stand_alone(monkeypatch, k, n_classes):
    head = with_own_words(n_classes, reorganize_every=None)
    check_only_the_clusters_of_the_best_are_sorted(head, k, monkeypatch)


def check_only_the_clusters_of_the_best_are_sorted(head, k, monkeypatch):
    hidden = 0.1 * torch.randn(40, WIDTH)
    log_p = head.log_prob(hidden)
    monkeypatch.setattr(search, "SPARED", 0)
    monkeypatch.setattr(Words, "log_prob_in_order", None)
    assert_best(head.topk(hidden, k), log_p)


@pytest.mark.parametrize("rows, k", [(40, 5), (40, 2000), (2, 5)])
def test_the_default_device_is_nothing_to_a_layer_that_is_elsewhere(rows, k):
    head = make(40_000, in_features=8, reorganize_every=None)
    hidden = 0.1 * torch.randn(rows, 8)
    expected = head.topk(hidden, k)
    with torch.device("meta"):
        found = head.topk(hidden, k)
    torch.testing.assert_close(found, expected)


class Counted(Words):
    """Counts what is fetched: clusters by their words and rows, all words by rows."""

    opened: list[tuple[int, int]]
    dense: list[int]

    def logits_of(self, hidden, words, scratch=None):
        Counted.opened.append((words.numel(), hidden.shape[0]))
        return super().logits_of(hidden, words, scratch)

    def logits_by_word(self, hidden):
        Counted.dense.append(hidden.shape[0])
        return super().logits_by_word(hidden)


@pytest.fixture
def counted(monkeypatch):
    monkeypatch.setattr(inference, "Words", Counted)
    Counted.opened, Counted.dense = [], []
    return Counted


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("answer", [lambda h, x: h.topk(x, 3), lambda h, x: h.sample(x, temperature=0.7)])
@pytest.mark.parametrize("own_words", [0, 700])
def test_peaked_rows_open_few_clusters(counted, rows, answer, own_words):
    head = make(50_000, in_features=8, reorganize_every=None, own_words=own_words)
    answer(head, 6 * torch.randn(rows, 8))
    assert not counted.dense
    assert sum(words for words, _ in counted.opened) < head.n_classes / 8


@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("sharpness", [0.0, 0.2, 0.6, 3.0])
@pytest.mark.parametrize(
    "answer",
    [
        lambda h, x: h.topk(x, 10),
        lambda h, x: h.extend(x, torch.zeros(len(x)), 10),
        lambda h, x: h.sample(x, temperature=2.0),
        lambda h, x: h.sample(x, top_p=0.9),
    ],
)
@pytest.mark.parametrize("own_words", [0, 700])
def test_no_answer_costs_much_more_than_the_dense_one(counted, rows, sharpness, answer, own_words):
    head = make(20_000, in_features=8, reorganize_every=None, own_words=own_words)
    answer(head, sharpness * torch.randn(rows, 8))
    spent = sum(words * (search.FETCH + n) for words, n in counted.opened)
    spent += sum(head.n_classes * (search.STREAM + n) for n in counted.dense)
    dense = head.n_classes * (search.STREAM + rows)
    pilots = 4 * head.n_classes if rows > 4 * search.PILOTS else 0  # what the rows that go first may spend
    assert spent <= (1 + search.TRIAL) * (dense + pilots)


@pytest.mark.parametrize("rows", [1, 8])
def test_where_words_that_stand_alone_are_the_best_no_cluster_is_opened(counted, rows):
    head = make(50_000, in_features=8, reorganize_every=None, own_words=700)
    own = head.partition.own
    with torch.no_grad():
        head.bias[own] += 100
    hidden, generator = torch.randn(rows, 5, 8), torch.Generator().manual_seed(1)
    answers = [
        head.topk(hidden, 10)[1],
        head.extend(hidden, torch.randn(rows, 5), 10)[2],
        head.sample(hidden, generator=generator),
        head.sample(hidden, temperature=0.8, generator=generator),
        head.sample(hidden, top_k=9, generator=generator),
        head.sample(hidden, top_p=0.2, generator=generator),
    ]
    assert all(torch.isin(words, own).all() for words in answers)
    assert not counted.opened
    assert not any(counted.dense)


def test_what_is_found_in_one_part_spares_others(counted, monkeypatch):
    head = make(50_000, in_features=8, reorganize_every=None)
    hidden, score = 0.5 * torch.randn(8, 5, 8), torch.randn(8, 5)
    fetched = {}
    for parts in (1, search.PARTS):
        monkeypatch.setattr(search, "PARTS", parts)
        counted.opened.clear()
        answer = head.extend(hidden, score, 5)
        fetched[parts] = sum(words * (search.FETCH + rows) for words, rows in counted.opened)
        assert not counted.dense
    assert fetched[search.PARTS] < fetched[1]
    torch.testing.assert_close(answer, head.extend(hidden, score, 5))


@pytest.mark.parametrize("hypotheses", [1, 5])
def test_a_flat_question_among_others_is_given_up_at_the_first_look(counted, monkeypatch, hypotheses):
    monkeypatch.setattr(search, "TRIAL", 1.0)  # what it costs is no reason
    head = make(50_000, in_features=8, reorganize_every=None)
    hidden = 6 * torch.randn(3, hypotheses, 8)
    hidden[1] = 0
    head.extend(hidden, torch.zeros(3, hypotheses), 5)
    assert counted.dense == [hypotheses]
    assert sum(words for words, _ in counted.opened) < head.n_classes / 4


def test_only_rows_that_ask_are_counted():
    sizes = torch.tensor([10, 20, 30])
    cluster, row = torch.tensor([[0, 1, 2], [1, 1, 2]]), torch.tensor([[0, 4, 1], [5, 9, 9]])
    asked = torch.tensor([[True, True, False], [True, False, False]])
    left = cluster, row, asked
    fetches = search.FETCH * (10 + 20)
    # For every word and row that asks, a product and a place; of three rows, two do not ask for the first cluster and
    # one does not ask for the second.
    assert search.cost_in_parts(sizes, left, 3, 3) == fetches + 2 * (10 + 2 * 20) + 2 * 10 + 20
    # In two parts the second cluster is fetched again.
    apart = fetches + 2 * (10 + 20) + 10 + 20 + (search.FETCH + 2) * 20
    assert search.cost_in_parts(sizes, left, 2, 1) == apart
    assert search.cost_in_parts(sizes, left, 1, 1) == fetches + 2 * (10 + 20) + 10 + 20


def test_a_small_vocabulary_and_a_batch_of_flat_rows_are_dense(counted, monkeypatch):
    head = make(20_000, in_features=8, reorganize_every=None)
    with monkeypatch.context() as patch:
        patch.setattr(search, "SMALL", 20_001)
        head.topk(6 * torch.randn(2, 8), 3)
    assert (counted.dense, counted.opened) == ([2], [])
    head.topk(0.0 * torch.randn(64, 8), 3)
    assert counted.dense == [2, 64]
    assert sum(rows for _, rows in counted.opened) <= search.PILOTS * search.FIRST_LOOK
