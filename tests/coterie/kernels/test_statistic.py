"""What is remembered of each word: the kernel against the module."""

import pytest
import torch

pytest.importorskip("triton")

from coterie.clustering.statistics import MeanHidden
from coterie.kernels import statistic
from coterie.loss import grouping
from tests.coterie.kernels.batches import DEVICE, DTYPES, N_WORDS, seats

pytestmark = pytest.mark.usefixtures("interpreter", "new_memory_is_nan")


def remembered(sample, target, counts, smoothing, batches=2, loss=1.0):
    """(total, weight) of the module and of the kernel after some batches."""
    groups = grouping.group(target, seats(torch.Generator().manual_seed(5)))
    module, ours = (MeanHidden(N_WORDS, sample.shape[1], smoothing, DEVICE) for _ in range(2))
    loss = torch.tensor(loss, device=DEVICE)
    for batch in range(batches):
        module.update(sample + batch, groups, counts, loss)
        statistic.update(ours, sample + batch, groups, counts, loss)
    return (module.total, module.weight), (ours.total, ours.weight)


@pytest.mark.parametrize("smoothing", ["mean", "paper"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens, row", [(1, 5), (60, 130), (64, 20), (200, 20)])
def test_is_the_update(tokens, row, dtype, smoothing):
    g = torch.Generator().manual_seed(tokens)
    sample = torch.randn(tokens, 2 * row, generator=g).to(dtype).to(DEVICE)[:, :row]
    target = torch.randint(-1, N_WORDS, (tokens,), generator=g)
    target[tokens // 2 :] = 3
    counts = torch.randint(0, 50, (N_WORDS,), generator=g).to(DEVICE)
    module, ours = remembered(sample, target.to(DEVICE), counts, smoothing)
    torch.testing.assert_close(ours, module, rtol=1e-5, atol=1e-5)


def in_small_pieces(monkeypatch):
    monkeypatch.setattr(statistic, "CHUNK", 16)
    monkeypatch.setattr(statistic, "AHEAD", 32)


@pytest.mark.parametrize("often", [1, 15, 16, 17, 31, 32, 33, 64, 95, 96])
@pytest.mark.parametrize("word", [0, 77, N_WORDS - 1])
def test_of_a_word_whose_run_crosses_chunks(monkeypatch, often, word):
    """Runs that begin, end and lie wholly at every boundary of chunks of 16; the word is first, inside or last."""
    in_small_pieces(monkeypatch)
    target = torch.randint(0, N_WORDS, (96,), device=DEVICE)
    target[torch.randperm(96)[:often]] = word
    sample = torch.randn(96, 3, device=DEVICE).T.contiguous().T
    module, ours = remembered(sample, target, torch.full((N_WORDS,), 1000, device=DEVICE), "mean")
    torch.testing.assert_close(ours, module, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "runs",
    [
        (5, 63, 3, 0),  # from inside a chunk to inside another, several later
        (5, 70, 0, 0),  # to the last token, which is not the last of a chunk
        (0, 80, 0, 0),  # to the last token, which is: one word alone
        (9, 39, 0, 7),  # to the end of a chunk, tokens left out behind it
        (16, 48, 4, 40),  # chunks of nothing else; tokens left out for several chunks
        (30, 34, 33, 2),  # one run goes on where another comes in, and chunks end with the run looked for
        (1, 111, 1, 0),  # longer than what is looked at together, several times
    ],
)
def test_of_runs_of_given_lengths(monkeypatch, runs):
    in_small_pieces(monkeypatch)
    names = seats(torch.Generator().manual_seed(5)).words[[20, 21, 100]].tolist()  # in this order
    target = torch.tensor([word for word, n in zip((*names, -1), runs, strict=True) for _ in range(n)], device=DEVICE)
    target = target[torch.randperm(sum(runs))]
    sample = torch.randn(sum(runs), 5, device=DEVICE)
    module, ours = remembered(sample, target, torch.full((N_WORDS,), 50, device=DEVICE), "mean")
    torch.testing.assert_close(ours, module, rtol=1e-5, atol=1e-6)
    assert torch.equal(ours[1] > 0, torch.bincount(target[target >= 0], minlength=N_WORDS) > 0)


def test_of_a_very_frequent_word_is_more_than_rounding():
    target = torch.full((11,), 7, device=DEVICE)
    counts = torch.full((N_WORDS,), 3_000_000, device=DEVICE)
    for _, weight in remembered(torch.randn(11, 3, device=DEVICE), target, counts, "mean", batches=1):
        assert weight[7].item() == pytest.approx(1 - (1 - 1 / 3_000_000) ** 11, rel=1e-5)


@pytest.mark.parametrize("loss", [torch.nan, torch.inf])
def test_leaves_out_a_batch_that_is_not_finite(monkeypatch, loss):
    in_small_pieces(monkeypatch)
    target = torch.randint(0, 3, (40,), device=DEVICE)  # runs inside and across chunks
    counts = torch.full((N_WORDS,), 4, device=DEVICE)
    _, (total, weight) = remembered(torch.full((40, 6), torch.nan, device=DEVICE), target, counts, "mean", loss=loss)
    assert not total.any()
    assert not weight.any()
