"""The search of a GPU against the dense distribution; without a GPU its kernels run in Triton's interpreter."""

import pytest
import torch

pytest.importorskip("triton")

from coterie import inference
from coterie.clustering.partition import Partition
from coterie.kernels import search as kernels
from coterie.loss.levels import root_log_softmax
from coterie.search import triton as search_gpu
from coterie.search.triton import GpuWords
from coterie.search.words import Words
from tests.layers import SHAPES, WIDTH, assert_best, make, with_empty_clusters, with_own_words

pytestmark = pytest.mark.usefixtures("interpreter")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def answer(head, hidden):
    words, word_hidden, log_root = inference.levels(head.vectors(), head.partition, hidden)
    return GpuWords(words.weight, words.bias, words.partition), word_hidden, log_root


def check(head, hidden, k):
    words, word_hidden, log_root = answer(head, hidden)
    assert_best(words.topk(word_hidden, log_root, k), head.log_prob(hidden))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_dense_kernel_gives_every_words_probability(shape):
    head = SHAPES[shape]().to(DEVICE)
    hidden = torch.randn(3, WIDTH, device=DEVICE)
    words, word_hidden, log_root = answer(head, hidden)
    found = words.log_prob(word_hidden, log_root)
    torch.testing.assert_close(found, head.double().log_prob(hidden.double()).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make_head", [with_empty_clusters, with_own_words])
def test_opened_clusters_hold_their_words_and_nothing_else(make_head):
    head = make_head().to(DEVICE)
    hidden = torch.randn(4, WIDTH, device=DEVICE)
    words, word_hidden, log_root = answer(head, hidden)
    clusters = torch.arange(head.n_clusters, device=DEVICE).expand(4, -1)
    found = words.open(word_hidden, log_root, clusters)
    dense = head.log_prob(hidden)
    assert found.shape == (4, head.n_clusters, head.partition.capacity)
    for cluster in range(head.n_clusters):
        members = head.partition.members(cluster)
        torch.testing.assert_close(found[:, cluster, : len(members)], dense[:, members], rtol=1e-5, atol=1e-5)
        assert (found[:, cluster, len(members) :] == -torch.inf).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_roots_shares_are_the_softmaxs(shape, dtype):
    head = SHAPES[shape]().to(DEVICE)
    sizes = head.partition.root_sizes
    logits = torch.randn(5, 2 * len(sizes), device=DEVICE, dtype=dtype)[:, ::2]  # no stretch of memory
    words = GpuWords(head.weight, head.bias, head.partition)
    torch.testing.assert_close(words.shares(logits), root_log_softmax(logits.float(), sizes))


@pytest.mark.parametrize("shape", ["own words", "one own word", "places for own words, all empty", "all own words"])
def test_words_that_stand_alone_are_one_more_cluster_of_all_their_mass(shape):
    head = SHAPES[shape]().to(DEVICE)
    words, _, log_root = answer(head, torch.randn(5, WIDTH, device=DEVICE))
    n_clusters, alone = head.n_clusters, log_root[:, head.n_clusters :].logsumexp(1, keepdim=True)
    torch.testing.assert_close(words._clusters(log_root), torch.cat((log_root[:, :n_clusters], alone), 1))


@pytest.mark.parametrize(
    "rows, dtype", [(3, torch.float32), (33, torch.float16), (65, torch.float32), (130, torch.float16)]
)
def test_few_rows_and_many_have_the_same_logits(rows, dtype):
    head = make(150, in_features=70).to(DEVICE)  # neither fills its tiles
    hidden = torch.randn(70, rows, device=DEVICE).T
    words, word_hidden, log_root = answer(head, hidden)
    word_hidden = word_hidden.to(dtype)
    found = words.log_prob(word_hidden.T.contiguous().T, log_root)
    exact = Words(head.weight.to(dtype).double(), head.bias.double(), head.partition)
    expected = exact.log_prob(word_hidden.double(), log_root.double()).float()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "shape, k",
    [*((shape, 3) for shape in SHAPES), ("empty clusters", 1), ("default", 13), ("own words", 2), ("own words", 53)],
)
def test_the_best_of_every_cluster_hold_the_best_of_all(shape, k):
    head = SHAPES[shape]().to(DEVICE)
    hidden = torch.randn(5, WIDTH, device=DEVICE)
    words, word_hidden, log_root = answer(head, hidden)
    k = min(k, head.n_classes)
    logits = log_root + torch.randn(5, 1, device=DEVICE)  # whatever they sum to
    assert_best(words.topk(word_hidden, logits, k), head.log_prob(hidden))


@pytest.mark.parametrize("each", [1, 3, 16])
@pytest.mark.parametrize("make_head", [with_empty_clusters, with_own_words])
def test_a_program_may_have_several_clusters(make_head, each, monkeypatch):
    monkeypatch.setattr(kernels, "PROGRAMS", 1)
    monkeypatch.setattr(kernels, "MOST_EACH", each)
    head = make_head().to(DEVICE)
    place = head.partition
    assert 3 * max(place.capacity, place.n_own) < place.n_words  # more would be sorted out of all words
    hidden = torch.randn(4, WIDTH, device=DEVICE)
    check(head, hidden, 3)


@pytest.mark.parametrize(
    "k, first, sharpness",
    [(1, 1, 0.0), (1, 1, 4.0), (7, 4, 1.0), (8, 1, 4.0), (3, 8, 0.0), (60, 4, 1.0), (200, 100, 4.0)],
)
@pytest.mark.parametrize("own_words", [0, 30])
def test_a_search_with_a_bar_finds_what_the_dense_one_finds(k, first, sharpness, own_words, monkeypatch):
    monkeypatch.setattr(search_gpu, "CHEAP", 0)
    monkeypatch.setattr(search_gpu, "FIRST", first)
    head = make(200, in_features=16, own_words=own_words).to(DEVICE)
    hidden = sharpness * torch.randn(3, 16, device=DEVICE)
    hidden[0] *= 5  # one row more certain than the others
    check(head, hidden, k)


def test_a_bar_is_held_against_what_it_was_made_from(monkeypatch):
    monkeypatch.setattr(search_gpu, "CHEAP", 0)
    # Each word is as probable as its cluster, to the last bit: to normalise again might put it below itself.
    head = make(20, in_features=16, partition=Partition(torch.arange(20), 20), gamma=0.25).to(DEVICE)
    assert head.partition.capacity == 2
    hidden = torch.randn(4, 16, device=DEVICE)
    words, word_hidden, log_root = answer(head, hidden)
    assert_best(words.topk(word_hidden, log_root, 6), head.log_prob(hidden))
    none = torch.full((4,), -torch.inf, device=DEVICE)
    values, found = words._best(word_hidden, log_root + 1, log_root + 1, 3, none, None, 1)
    assert torch.equal(values, (log_root + 1).gather(1, found))


@pytest.mark.parametrize("make_head", [with_empty_clusters, with_own_words])
def test_only_clusters_above_the_bar_are_opened(make_head):
    """Words that stand alone are opened together, as a cluster of all their mass."""
    head = make_head().to(DEVICE)
    hidden = torch.randn(4, WIDTH, device=DEVICE)
    words, word_hidden, log_root = answer(head, hidden)
    log_cluster = words._clusters(log_root)
    bar = log_cluster.median(1).values
    bar[0] = torch.nan  # opens all: what is wrong is to be seen
    logits = words._logits(word_hidden, log_root, log_cluster, bar)
    clusters = torch.arange(log_cluster.shape[1], device=DEVICE).expand(4, -1)
    values, found = words._members(logits, log_cluster, clusters, bar, None, 1)
    below = (log_cluster < bar[:, None])[:, head.partition.cluster_of]
    assert below.any(1).tolist() == [False, True, True, True]
    expected = head.log_prob(hidden).masked_fill(below, -torch.inf)
    listed = values > -torch.inf
    assert listed.sum(1).tolist() == (expected > -torch.inf).sum(1).tolist()
    torch.testing.assert_close(values[listed], expected.gather(1, found)[listed], rtol=1e-5, atol=1e-5)
    peaks = kernels.peaks(logits, log_cluster, words.partition.offsets, words.capacity, bar, None)
    assert torch.equal(peaks, values.view(*clusters.shape, -1).amax(2))


def test_words_that_nobody_asks_for_are_not_computed(monkeypatch):
    monkeypatch.setattr(kernels, "WORDS", 16)
    head = make(200, in_features=16).to(DEVICE)
    words, word_hidden, log_root = answer(head, torch.randn(3, 16, device=DEVICE))
    bar = log_root.topk(2, 1).values[:, -1].contiguous()
    monkeypatch.setattr(torch, "empty", lambda *shape, **options: torch.full(shape, 7.0, **options))
    logits = words._logits(word_hidden, log_root, log_root, bar)
    asked = ~(log_root < bar[:, None])[:, head.partition.cluster_of[head.partition.words]]
    expected = (word_hidden @ head.weight.T + head.bias)[:, head.partition.words]
    torch.testing.assert_close(logits[asked], expected[asked], rtol=1e-5, atol=1e-5)
    assert float((logits == 7.0).float().mean()) > 0.3


def test_a_hidden_vector_that_is_not_a_number_has_no_best_word():
    head = make(150, in_features=16).to(DEVICE)
    hidden = torch.randn(3, 16, device=DEVICE)
    hidden[1] = torch.nan
    words, word_hidden, log_root = answer(head, hidden)
    values, _ = words.topk(word_hidden, log_root, 3)
    assert values.isnan().all(1).tolist() == [False, True, False]
    head.weight[7] = torch.nan
    assert words.topk(word_hidden, log_root, 1)[0].isnan().all()


@pytest.mark.parametrize("k", [1, 4, 7, 300])
@pytest.mark.parametrize("own_words", [0, 17])
def test_hypotheses_are_extended_together(k, own_words):
    head = make(150, in_features=16, own_words=own_words).to(DEVICE)
    hidden, score = torch.randn(3, 4, 16, device=DEVICE), -3 * torch.rand(3, 4, device=DEVICE)
    score[1, 2] = -torch.inf
    hidden[1, 2] = torch.nan  # nobody is there
    words, word_hidden, log_root = answer(head, hidden)
    found = words.extend(word_hidden, log_root, score, k)
    if k * head.partition.capacity >= 150:
        assert found is None
        return
    dense = head.log_prob(hidden.nan_to_num()) + score[..., None]
    assert_best(found, dense.flatten(1))


def test_scores_may_lie_any_distance_apart():
    head = make(60, in_features=16, n_clusters=30, gamma=0.2).to(DEVICE)
    words, word_hidden, log_root = answer(head, torch.randn(1, 4, 16, device=DEVICE))
    apart = torch.full((1, 4, 7), -50.0, device=DEVICE)
    apart[..., 0] = torch.tensor([0.0, -0.1, 0.1, 0.2])
    same = torch.zeros(4, device=DEVICE)
    same[1:] = -50
    for score in (apart[..., 0], same[:1].expand(1, 4)):
        expected = words.extend(word_hidden, log_root, score.contiguous(), 15)
        torch.testing.assert_close(words.extend(word_hidden, log_root, score, 15), expected)


def test_clusters_with_fewer_words_than_are_wanted_set_no_bar(monkeypatch):
    monkeypatch.setattr(search_gpu, "CHEAP", 0)
    head = make(64, in_features=16, partition=Partition(torch.arange(64) % 32, 32), gamma=0.25).to(DEVICE)
    assert head.partition.capacity == 2
    hidden = 3 * torch.randn(2, 16, device=DEVICE)
    for k in (8, 9, 20):
        check(head, hidden, k)


def test_many_rows_are_read_a_few_at_a_time(monkeypatch):
    head = make(200, in_features=16).to(DEVICE)
    words, word_hidden, log_root = answer(head, torch.randn(7, 16, device=DEVICE))
    expected = words.topk(word_hidden, log_root, 5)
    monkeypatch.setattr(search_gpu, "MOST_FOUND", 2 * 200 + 1)
    asked, logits = [], GpuWords._logits
    monkeypatch.setattr(GpuWords, "_logits", lambda self, h, *rest: (asked.append(len(h)), logits(self, h, *rest))[1])
    torch.testing.assert_close(words.topk(word_hidden, log_root, 5), expected)
    assert asked == [2, 2, 2, 1]
    assert words.topk(word_hidden[:0], log_root[:0], 5)[0].shape == (0, 5)
    assert words.extend(word_hidden[:6], log_root[:6], torch.zeros(2, 3, device=DEVICE), 5) is None


def test_large_matrices_have_a_bar_and_small_ones_and_many_rows_are_read_whole(monkeypatch):
    head = make(400, in_features=16).to(DEVICE)
    words, word_hidden, log_root = answer(head, 8 * torch.randn(6, 16, device=DEVICE))
    bars, logits = [], GpuWords._logits
    monkeypatch.setattr(GpuWords, "_logits", lambda self, *given: (bars.append(given[-1]), logits(self, *given))[1])
    words.topk(word_hidden[:1], log_root[:1], 1)
    monkeypatch.setattr(search_gpu, "CHEAP", 0)
    words.topk(word_hidden, log_root, 1)
    words.topk(word_hidden[:1], log_root[:1], 400)
    assert bars == [None] * 3
    words.topk(word_hidden[:4], log_root[:4], 1)
    assert [bar.shape for bar in bars[3:]] == [(4,), (4,)]


@pytest.mark.parametrize("shape", ["empty clusters", "own words", "all own words but two", "all own words"])
def test_draws_come_from_the_opened_cluster_or_from_the_root(shape):
    head = SHAPES[shape]().to(DEVICE)
    hidden = torch.randn(1, WIDTH, device=DEVICE).expand(300, -1)
    words, word_hidden, log_root = answer(head, hidden)
    drawn = words.draw(word_hidden, log_root, torch.Generator(DEVICE).manual_seed(3))
    share = torch.bincount(drawn, minlength=head.n_classes) / 300
    expected = head.log_prob(hidden[:1]).exp()[0]
    # Three standard deviations of the largest share, and a little for there being many words.
    assert float((share - expected).abs().max()) < 4 * float((expected.max() / 300).sqrt())
