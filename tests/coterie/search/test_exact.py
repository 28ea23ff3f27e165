"""Exact search: top-k for every k, and draws that follow the distribution."""

import pytest
import torch
from scipy.stats import chisquare

from coterie import SelfOrganizedSoftmax, inference
from coterie.clustering.partition import Partition
from coterie.search import exact as search
from coterie.search import sampling, words
from coterie.search.words import Words
from tests.layers import SHAPES, WIDTH, make, with_empty_clusters


@pytest.fixture(autouse=True)
def _no_vocabulary_is_small(monkeypatch):
    monkeypatch.setattr(search, "SMALL", 0)


@pytest.mark.parametrize("shape", SHAPES)
def test_topk_equals_the_dense_one_for_every_k(shape):
    head = SHAPES[shape]()
    hidden = torch.randn(5, WIDTH)
    log_p = head.log_prob(hidden)
    for k in range(1, head.n_classes + 1):
        values, indices = head.topk(hidden, k)
        assert torch.allclose(values, log_p.topk(k).values, atol=1e-6)
        assert torch.allclose(log_p.gather(1, indices), values, atol=1e-6)
        assert all(len(set(row)) == k for row in indices.tolist())


@pytest.mark.parametrize("sharpness", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("rows", [1, 64])
def test_topk_of_a_large_vocabulary_flat_and_peaked(sharpness, rows):
    head = make(3000, in_features=16)
    hidden = sharpness * torch.randn(rows, 16)
    log_p = head.log_prob(hidden)
    for k in (1, 10, 100):
        values, indices = head.topk(hidden, k)
        assert torch.allclose(values, log_p.topk(k).values, atol=1e-5)
        assert torch.allclose(log_p.gather(1, indices), values, atol=1e-5)


@pytest.mark.parametrize("n_clusters", [3, 9, 60])
@pytest.mark.parametrize("k", [1, 3, 12, 40])
def test_of_many_flat_rows_the_words_of_k_clusters_are_sorted_and_no_others(monkeypatch, k, n_clusters):
    head = with_empty_clusters(300, n_clusters, reorganize_every=None)
    hidden = 0.1 * torch.randn(40, WIDTH)
    log_p = head.log_prob(hidden)
    monkeypatch.setattr(search, "SPARED", 0)
    monkeypatch.setattr(Words, "log_prob_in_order", None)
    values, indices = head.topk(hidden, k)
    torch.testing.assert_close(values, log_p.topk(k).values)
    torch.testing.assert_close(log_p.gather(1, indices), values)
    assert all(len(set(row)) == k for row in indices.tolist())


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
def test_peaked_rows_open_few_clusters(counted, rows, answer):
    head = make(50_000, in_features=8, reorganize_every=None)
    answer(head, 6 * torch.randn(rows, 8))
    assert not counted.dense
    assert sum(words for words, _ in counted.opened) < head.n_classes / 8


@pytest.mark.parametrize("rows", [1, 3, 64])
@pytest.mark.parametrize("sharpness", [0.0, 0.1, 0.2, 0.3, 0.6, 1.0, 3.0])
@pytest.mark.parametrize(
    "answer",
    [
        lambda h, x: h.topk(x, 10),
        lambda h, x: h.extend(x, torch.zeros(len(x)), 10),
        lambda h, x: h.sample(x, temperature=2.0),
        lambda h, x: h.sample(x, top_p=0.9),
    ],
)
def test_no_answer_costs_much_more_than_the_dense_one(counted, rows, sharpness, answer):
    head = make(20_000, in_features=8, reorganize_every=None)
    answer(head, sharpness * torch.randn(rows, 8))
    spent = sum(words * (search.FETCH + n) for words, n in counted.opened)
    spent += sum(head.n_classes * (search.STREAM + n) for n in counted.dense)
    dense = head.n_classes * (search.STREAM + rows)
    pilots = 4 * head.n_classes if rows > 4 * search.PILOTS else 0  # what the rows that go first may spend
    assert spent <= (1 + search.TRIAL) * (dense + pilots)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
def test_words_fetched_in_blocks_are_those_fetched_at_once(monkeypatch, dtype, bias):
    head = make(500, in_features=8, bias=bias, dtype=dtype)
    asked, hidden = torch.randperm(500)[:41], torch.randn(3, 8, dtype=dtype)
    level = Words(head.weight, head.bias, head.partition)
    with torch.no_grad():
        monkeypatch.setattr(words, "BLOCK", 7)
        torch.testing.assert_close(level._logits_in_blocks(hidden, asked), level.logits_of(hidden, asked))


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


def test_predict_is_the_argmax():
    head = with_empty_clusters()
    hidden = torch.randn(4, 3, WIDTH)
    assert torch.equal(head.predict(hidden), head.log_prob(hidden).argmax(-1))


def draws(head, hidden, n, **options):
    generator = torch.Generator().manual_seed(5)
    return head.sample(hidden.expand(n, -1), generator=generator, **options)


def expected_distribution(log_p, temperature=1.0, top_k=None, top_p=None):
    """As language models define them: temperature, then the k best, then the nucleus."""
    p = (log_p / temperature).softmax(0)
    if top_k is not None:
        p = torch.where(p >= p.topk(top_k).values[-1], p, 0.0)
        p = p / p.sum()
    if top_p is not None:
        ordered, index = p.sort(descending=True)
        keep = ordered.cumsum(0) - ordered < top_p
        p = torch.zeros_like(p).index_copy(0, index, torch.where(keep, ordered, 0.0))
        p = p / p.sum()
    return p


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 1.7},
        {"top_k": 5},
        {"top_p": 0.7},
        {"top_p": 1.0},
        {"temperature": 0.7, "top_k": 8},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 0.8, "top_k": 9, "top_p": 0.6},
        {"top_k": 9, "top_p": 0.6},
    ],
)
@pytest.mark.parametrize("make_head", [make, with_empty_clusters])
def test_draws_follow_the_distribution(make_head, options):
    check_draws(make_head, options)


@pytest.mark.parametrize("trial", [0.0, 0.002, 1e9])
@pytest.mark.parametrize("temperature", [0.4, 1.7, 5.0])
def test_tempered_draws_are_exact_whenever_they_are_given_up(monkeypatch, trial, temperature):
    monkeypatch.setattr(sampling, "TRIAL", trial)
    check_draws(with_empty_clusters, {"temperature": temperature})


def check_draws(make_head, options):
    head = make_head(dtype=torch.float64)
    hidden = 0.15 * torch.randn(1, WIDTH, dtype=torch.float64)
    p = expected_distribution(head.log_prob(hidden)[0].detach(), **options)
    n = 20_000
    seen = torch.bincount(draws(head, hidden, n, **options), minlength=53).double()
    assert seen[p == 0].sum() == 0
    # Rare words are taken together: a chi-square test wants at least five expected in each bin.
    common = p * n >= 5
    observed = torch.cat((seen[common], seen[~common].sum()[None]))
    wanted = torch.cat((p[common] * n, p[~common].sum()[None] * n))
    if wanted[-1] < 1:
        observed, wanted = observed[:-1], wanted[:-1] * observed[:-1].sum() / wanted[:-1].sum()
    assert chisquare(observed.numpy(), wanted.numpy()).pvalue > 1e-3


def test_a_wide_nucleus_is_drawn_from_whole():
    head = make(1000)
    hidden = torch.zeros(1, WIDTH)
    with torch.no_grad():
        for parameter in (head.bias, head.cluster_bias):
            parameter.zero_()
    seen = torch.bincount(draws(head, hidden, 5_000, top_p=0.9), minlength=1000)
    assert int((seen > 0).sum()) > 800


@pytest.mark.parametrize("temperature", [1e-30, 1e-40, 1e-60])
@pytest.mark.parametrize("cut", [{}, {"top_k": 5}, {"top_p": 0.9}])
def test_a_temperature_next_to_zero_is_the_argmax(temperature, cut):
    head = make()
    hidden = torch.randn(6, WIDTH)
    assert torch.equal(head.sample(hidden, temperature=temperature, **cut), head.predict(hidden))


def test_temperature_zero_is_the_argmax():
    head = make()
    hidden = torch.randn(6, WIDTH)
    assert torch.equal(head.sample(hidden, temperature=0), head.predict(hidden))


def test_a_generator_repeats_its_draws():
    head = make()
    hidden = torch.randn(50, WIDTH)
    first, second = (head.sample(hidden, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    "call",
    [
        lambda h, x: h.log_prob(x),
        lambda h, x: h.topk(x, 2)[0],
        lambda h, x: h.predict(x),
        lambda h, x: h.sample(x),
        lambda h, x: h.sample(x, top_k=3),
        lambda h, x: h.sample(x, top_p=0.5),
        lambda h, x: h.sample(x, temperature=0.5),
        lambda h, x: h.extend(x.view(0, 5, WIDTH), x.new_empty(0, 5), 3)[0],
    ],
)
@torch.no_grad()
def test_no_rows_at_all(call):
    assert call(make(), torch.randn(0, WIDTH)).shape[0] == 0


@torch.no_grad()
def test_a_nucleus_found_by_the_search_alone():
    """Nothing is left to draw from all words."""
    head = SelfOrganizedSoftmax(64, 20_000, projection=False)
    head.cluster_weight.normal_(0, 8)
    head.weight.normal_()
    rows = torch.randn(20, 64).split(1)
    asked = [(row, inference.levels(head.vectors(), head.partition, row)) for row in rows]
    found = [row for row, levels in asked if sampling.attempt(*levels, sampling.NUCLEUS)[0].exp().sum() > 0.5]
    assert found
    for row in found:
        best = head.log_prob(row).topk(sampling.NUCLEUS)
        before = best.values.exp().cumsum(1) - best.values.exp()
        assert torch.isin(head.sample(row, top_p=0.5), best.indices[before < 0.5]).all()


@pytest.mark.parametrize("temperature", [0.7, 1.6])
def test_tempered_draws_of_one_row_do_not_avoid_large_clusters(temperature):
    partition = Partition(torch.tensor([0] * 100 + [1 + i // 30 for i in range(900)]), 31)
    head = make(1000, in_features=8, partition=partition, reorganize_every=None)
    hidden = 0.02 * torch.randn(1, 8)
    head.cluster_bias.data[0] = 3.0  # a large cluster that matters
    p = ((head.log_prob(hidden)[0] / temperature).softmax(0)[:100]).sum().item()
    assert 0.1 < p < 0.9
    generator = torch.Generator().manual_seed(1)
    n = 1500
    seen = sum(int(head.sample(hidden, temperature=temperature, generator=generator)) < 100 for _ in range(n)) / n
    assert abs(seen - p) < 4 * (p * (1 - p) / n) ** 0.5


@pytest.mark.parametrize("autocast", [False, True])
def test_several_threads_search_as_one_does(monkeypatch, autocast):
    monkeypatch.setattr(words, "ASKING", 0)  # a product for each cluster, which is what threads share
    monkeypatch.setattr(words, "FEW_NUMBERS", 0)
    monkeypatch.setattr(words, "FEW_CLUSTERS", 0)
    head = make(3000, in_features=16, projection=False)
    hidden = torch.randn(20, 16)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, autocast):
                answers = [head.topk(scale * hidden, 5) for scale in (0.3, 4.0)]
                found.append([*(part for pair in answers for part in pair), head.log_prob(hidden)])
        finally:
            torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
