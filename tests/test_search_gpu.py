"""The search of a GPU against the dense distribution; without a GPU its kernels run in Triton's interpreter."""

import pytest
import torch

pytest.importorskip("triton")

from coterie import search_gpu
from coterie.kernels import search as kernels
from coterie.loss.levels import cluster_log_softmax
from coterie.search_gpu import GpuWords
from tests.layers import SHAPES, WIDTH, make, with_empty_clusters

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def answer(head, hidden):
    words, word_hidden, log_cluster = head._answer(hidden)
    return GpuWords(words.weight, words.bias, words.partition), word_hidden, log_cluster


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_the_dense_kernel_gives_every_words_probability(shape):
    head = SHAPES[shape]().to(DEVICE)
    hidden = torch.randn(3, WIDTH, device=DEVICE)
    words, word_hidden, log_cluster = answer(head, hidden)
    found = words.log_prob(word_hidden, log_cluster)
    torch.testing.assert_close(found, head.double().log_prob(hidden.double()).float(), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_opened_clusters_hold_their_words_and_nothing_else():
    head = with_empty_clusters().to(DEVICE)
    hidden = torch.randn(4, WIDTH, device=DEVICE)
    words, word_hidden, log_cluster = answer(head, hidden)
    clusters = torch.arange(head.n_clusters, device=DEVICE).expand(4, -1)
    found = words.open(word_hidden, log_cluster, clusters)
    dense = head.log_prob(hidden)
    assert found.shape == (4, head.n_clusters, head.partition.capacity)
    for cluster in range(head.n_clusters):
        members = head.partition.members(cluster)
        torch.testing.assert_close(found[:, cluster, : len(members)], dense[:, members], rtol=1e-5, atol=1e-5)
        assert (found[:, cluster, len(members) :] == -torch.inf).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_the_clusters_shares_are_the_softmaxs(shape, dtype):
    head = SHAPES[shape]().to(DEVICE)
    logits = torch.randn(5, 2 * head.n_clusters, device=DEVICE, dtype=dtype)[:, ::2]  # no stretch of memory
    words = GpuWords(head.weight, head.bias, head.partition)
    torch.testing.assert_close(words.shares(logits), cluster_log_softmax(logits.float(), head.partition))


@pytest.mark.parametrize("rows", [1, 3, 16, 33, 64, 65])
@torch.no_grad()
def test_few_rows_and_many_have_the_same_logits(rows):
    head = make(150, in_features=70).to(DEVICE)  # neither fills its tiles
    hidden = torch.randn(70, rows, device=DEVICE).T
    words, word_hidden, log_cluster = answer(head, hidden)
    found = words.log_prob(word_hidden.T.contiguous().T, log_cluster)
    torch.testing.assert_close(found, head.double().log_prob(hidden.double()).float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sharpness", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("k, first", [(1, 1), (10, 4), (60, 1), (60, 100), (200, 100)])
@torch.no_grad()
def test_a_search_with_a_bar_finds_what_the_dense_one_finds(sharpness, k, first, monkeypatch):
    monkeypatch.setattr(search_gpu, "CHEAP", 0)
    monkeypatch.setattr(search_gpu, "FIRST", first)
    head = make(200, in_features=16).to(DEVICE)
    hidden = sharpness * torch.randn(3, 16, device=DEVICE)
    hidden[0] *= 5  # one row more certain than the others
    words, word_hidden, log_cluster = answer(head, hidden)
    values, indices = words.topk(word_hidden, log_cluster, k)
    dense = head.log_prob(hidden)
    torch.testing.assert_close(values, dense.topk(k).values, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dense.gather(1, indices), values, rtol=1e-5, atol=1e-5)
    assert all(len(set(row)) == k for row in indices.tolist())


@torch.no_grad()
def test_only_clusters_above_the_bar_are_opened():
    head = with_empty_clusters().to(DEVICE)
    hidden = torch.randn(4, WIDTH, device=DEVICE)
    words, word_hidden, log_cluster = answer(head, hidden)
    bar = log_cluster.median(1).values
    bar[0] = torch.nan  # opens all: what is wrong is to be seen
    found = kernels.open_above(
        word_hidden, log_cluster, bar, words.weight, words.bias, *(words.partition.words, words.partition.offsets),
        words.partition.capacity,
    )  # fmt: skip
    order = head.partition.words
    below = (log_cluster < bar[:, None])[:, head.partition.cluster_of[order]]
    assert below.any(1).tolist() == [False, True, True, True]
    expected = head.log_prob(hidden)[:, order].masked_fill(below, -torch.inf)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_many_rows_are_read_a_few_at_a_time(monkeypatch):
    head = make(200, in_features=16).to(DEVICE)
    words, word_hidden, log_cluster = answer(head, torch.randn(7, 16, device=DEVICE))
    expected = words.topk(word_hidden, log_cluster, 5)
    monkeypatch.setattr(search_gpu, "MOST_FOUND", 2 * 200 + 1)
    asked, dense = [], GpuWords.log_prob
    monkeypatch.setattr(GpuWords, "log_prob", lambda self, h, c: (asked.append(len(h)), dense(self, h, c))[1])
    torch.testing.assert_close(words.topk(word_hidden, log_cluster, 5), expected)
    assert asked == [2, 2, 2, 1]
    assert words.topk(word_hidden[:0], log_cluster[:0], 5)[0].shape == (0, 5)


@torch.no_grad()
def test_large_matrices_are_searched_and_small_ones_and_many_rows_read_whole(monkeypatch):
    head = make(400, in_features=16).to(DEVICE)
    words, word_hidden, log_cluster = answer(head, 8 * torch.randn(6, 16, device=DEVICE))
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "open_above", lambda *_: pytest.fail("opened"))
        words.topk(word_hidden[:1], log_cluster[:1], 1)
        patch.setattr(search_gpu, "CHEAP", 0)
        words.topk(word_hidden, log_cluster, 1)
        words.topk(word_hidden[:1], log_cluster[:1], 400)
    monkeypatch.setattr(search_gpu, "CHEAP", 0)
    monkeypatch.setattr(kernels, "normalize", lambda *_: pytest.fail("dense"))
    words.topk(word_hidden[:4], log_cluster[:4], 1)


@torch.no_grad()
def test_draws_come_from_the_opened_cluster():
    head = with_empty_clusters().to(DEVICE)
    hidden = torch.randn(1, WIDTH, device=DEVICE).expand(300, -1)
    words, word_hidden, log_cluster = answer(head, hidden)
    drawn = words.draw(word_hidden, log_cluster, torch.Generator(DEVICE).manual_seed(3))
    share = torch.bincount(drawn, minlength=head.n_classes) / 300
    expected = head.log_prob(hidden[:1]).exp()[0]
    # Three standard deviations of the largest share, and a little for there being many words.
    assert float((share - expected).abs().max()) < 4 * float((expected.max() / 300).sqrt())
