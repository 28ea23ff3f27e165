"""A batch in a few numbers: the kernel against the plain functions."""

import pytest
import torch

pytest.importorskip("triton")

from coterie import metrics
from coterie.kernels import summary
from tests.coterie.kernels.batches import DEVICE

pytestmark = pytest.mark.usefixtures("interpreter", "new_memory_is_nan")


USES = {  # of log P (T,) and of the mean loss ()
    "the loss": lambda output, loss: 3 * loss,
    "log P": lambda output, loss: (output * torch.arange(len(output), device=DEVICE)).sum(),
    "both": lambda output, loss: 3 * loss - (output * torch.arange(len(output), device=DEVICE)).sum(),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("tokens", [0, 1, 5, 9000])
def test_summary_is_the_plain_one(tokens, use):
    sums = [torch.ones(3, dtype=torch.float64, device=DEVICE) for _ in range(2)]
    tallies = [torch.ones(4, dtype=torch.int64, device=DEVICE) for _ in range(2)]
    log_p = torch.randn(2, tokens, device=DEVICE, requires_grad=True)
    n_used = torch.tensor(max(tokens - 2, 0), device=DEVICE)
    results = []
    for way, total, tally in zip((summary.summarize, metrics.summarize), sums, tallies, strict=True):
        output, loss, sound = way(*log_p, n_used, total, tally)
        gradients = torch.autograd.grad(USES[use](output, loss), log_p)
        results.append((output.detach(), loss.detach(), sound, *gradients))
    for x, y in zip((*results[0], sums[0], tallies[0]), (*results[1], sums[1], tallies[1]), strict=True):
        assert x.dtype == y.dtype
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)


def test_the_gradient_of_the_loss_alone_is_one_number():
    log_p = torch.randn(2, 40, device=DEVICE).unbind()
    given = [x.requires_grad_() for x in log_p]
    sums, tally = torch.zeros(3, dtype=torch.float64, device=DEVICE), torch.zeros(4, dtype=torch.int64, device=DEVICE)
    _, loss, _ = summary.summarize(*given, torch.tensor(40, device=DEVICE), sums, tally)
    assert [x.stride() for x in torch.autograd.grad(loss, given)] == [(0,), (0,)]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_a_batch_that_is_not_sound_is_tallied_and_not_measured(value, compiled):
    sums = torch.tensor([-3.0, -4.0, 2.0], dtype=torch.float64, device=DEVICE)
    tally = torch.tensor([5, 6, 7, 8], device=DEVICE)
    way = torch.compile(summary.summarize, fullgraph=True, backend="aot_eager") if compiled else summary.summarize
    for broken in (False, True, False):
        log_p = torch.full((2, 2000), -0.5, device=DEVICE)
        if broken:
            log_p[1, 1500] = value
        *_, sound = way(*log_p, torch.tensor(1999, device=DEVICE), sums, tally)
        assert bool(sound) is not broken
    assert sums.tolist() == [-2003.0, -2004.0, 4000.0]
    assert tally.tolist() == [5, 6, 8, 11]
