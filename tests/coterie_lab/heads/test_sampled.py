"""Losses from samples: what they draw, the exact sums of a draw, and where their gradients go as the draws grow."""

import math
from itertools import pairwise

import pytest
import torch
from scipy import stats

from coterie.clustering.prior import log_frequency
from coterie_lab.heads import ImportanceSampling, NoiseContrastive
from coterie_lab.heads.proposals import Draw, Proposal

V, D = 20, 5
COUNTS = (500 / torch.arange(1, V + 1)).long()
EVERYTHING = torch.ones(6, dtype=torch.bool)


def text(length=400):
    generator = torch.Generator().manual_seed(3)
    return torch.multinomial(COUNTS.double(), length, True, generator=generator)


def by_hand(kind, target):
    """The distribution a batch draws from, in plain loops."""
    weights = [float(count) ** (0.75 if kind == "power" else 1.0) for count in COUNTS]
    unigram = [weight / sum(weights) for weight in weights]
    if kind != "bigram":
        return unigram
    words, mixed = text().tolist(), [0.0] * V
    for context in target.tolist():
        following = [b for a, b in pairwise(words) if a == context]
        for word in following:
            mixed[word] += 1 / len(following) / len(target)
    total = [0.5 * a + 0.5 * b for a, b in zip(unigram, mixed, strict=True)]
    return [part / sum(total) for part in total]


@pytest.mark.parametrize("kind", ["unigram", "power", "bigram"])
def test_words_are_drawn_as_often_as_they_should_be(kind):
    proposal = Proposal(kind, COUNTS, V, text().numpy()).to(torch.bfloat16)  # its tables are no less exact for it
    target = torch.tensor([0, 3, 3, 7, 1, 9])
    expected = torch.tensor(by_hand(kind, target), dtype=torch.float64)
    torch.testing.assert_close(proposal.distribution(target, EVERYTHING), expected, atol=1e-9, rtol=0)
    drawn = proposal(target, EVERYTHING, 20_000)
    torch.testing.assert_close(drawn.log_q, expected.log()[drawn.words], atol=1e-6, rtol=0)
    torch.testing.assert_close(drawn.target_log_q, expected.log()[target], atol=1e-6, rtol=0)
    found = torch.bincount(drawn.words, minlength=V)
    assert stats.chisquare(found.numpy(), (expected * 20_000).numpy()).pvalue > 1e-4


def test_ignored_targets_are_no_contexts():
    proposal = Proposal("bigram", COUNTS, V, text().numpy())
    used = torch.tensor([True, True, False])
    some = proposal.distribution(torch.tensor([4, 5, 0]), used)
    torch.testing.assert_close(some, proposal.distribution(torch.tensor([4, 5]), used[:2]))


def with_draws(head, words):
    """The head with these words drawn, whatever the batch."""
    log_q = torch.tensor(by_hand("unigram", None), dtype=torch.float64).log()
    head.proposal.forward = lambda target, used, n: Draw(words, log_q[words], log_q[target])
    return head, log_q


def large(head):
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return head.double()


def test_importance_sampling_sums_what_was_drawn():
    words = torch.tensor([2, 2, 5, 11, 0])
    head, log_q = with_draws(large(ImportanceSampling(D, V, COUNTS, samples=5)), words)
    hidden, target = torch.randn(3, D, dtype=torch.float64), torch.tensor([2, 7, -100])
    with torch.no_grad():
        out = head(hidden, target)
    for row in range(2):
        score = (hidden[row] @ head.weight.T + head.bias).tolist()
        right = int(target[row])
        others = [math.exp(score[word]) / (5 * math.exp(log_q[word])) for word in words.tolist() if word != right]
        assert float(out.output[row]) == pytest.approx(score[right] - math.log(math.exp(score[right]) + sum(others)))
    assert float(out.loss) == pytest.approx(-float(out.output.sum()) / 2)


def test_a_batch_whose_draws_are_all_its_target_is_finite():
    head, _ = with_draws(large(ImportanceSampling(D, V, COUNTS, samples=2)), torch.tensor([4, 4]))
    out = head(torch.randn(1, D, dtype=torch.float64), torch.tensor([4]))
    out.loss.backward()
    assert float(out.loss.detach()) == 0
    assert bool(head.weight.grad.isfinite().all())


@pytest.mark.parametrize("biases", ["counts", "random"])
@pytest.mark.parametrize("normalizer", [None, 1.5, "learned"])
def test_noise_contrast_sums_what_was_drawn(normalizer, biases):
    words = torch.tensor([2, 2, 5, 11, 0])
    made = NoiseContrastive(D, V, COUNTS, normalizer=normalizer, samples=5, biases=biases)
    head, log_q = with_draws(large(made), words)
    start = math.log(V) if biases == "random" else float(log_frequency(COUNTS).exp().sum().log())
    learned = 0.0 if head.offset is None else float(head.offset.detach())
    log_z = {None: start, 1.5: 1.5, "learned": start + learned}[normalizer]
    hidden, target = torch.randn(2, D, dtype=torch.float64), torch.tensor([2, 7])
    expected = 0.0
    for row in range(2):
        score = (hidden[row] @ head.weight.T + head.bias - log_z).tolist()

        def from_text(word, score=score):
            p, noise = math.exp(score[word]), 5 * math.exp(log_q[word])
            return p / (p + noise)

        expected -= math.log(from_text(int(target[row])))
        expected -= sum(math.log(1 - from_text(word)) for word in words.tolist())
    loss = head(hidden, target).loss
    assert float(loss.detach()) == pytest.approx(expected / 2)
    loss.backward()
    assert normalizer != "learned" or head.offset.grad.any()


@pytest.mark.parametrize("normalizer", [None, 1.5])
def test_what_noise_contrast_takes_off_every_score_is_kept_with_the_weights(normalizer):
    options = {"normalizer": normalizer, "samples": 5}
    counted = NoiseContrastive(D, V, COUNTS, **options)
    by_chance = NoiseContrastive(D, V, COUNTS, biases="random", **options)
    hidden, target = torch.randn(3, D), torch.tensor([2, 7, 0])
    expected = by_chance(hidden, target).output
    counted.load_state_dict(by_chance.state_dict())
    torch.testing.assert_close(counted(hidden, target).output, expected)
    assert counted.to(torch.bfloat16).log_z.value.dtype == torch.float32


def distances(head, samples, hidden, target, exact, repeats=300):
    """How far the mean gradient over many draws is from the full softmax's, as a share of that one's length."""
    head.samples = samples
    inputs = [hidden, head.weight, head.bias]
    total = [torch.zeros_like(part) for part in inputs]
    for _ in range(repeats):
        for part, found in zip(total, torch.autograd.grad(head(hidden, target).loss, inputs), strict=True):
            part += found / repeats
    flat = torch.cat([part.flatten() for part in total])
    return float((flat - exact).norm() / exact.norm())


@pytest.mark.parametrize("kind", ["unigram", "power", "bigram"])
@pytest.mark.parametrize("of", [ImportanceSampling, NoiseContrastive])
def test_the_expected_gradient_approaches_that_of_the_full_softmax(of, kind):
    """300 draws of K words each: the mean gradient is within 2% of the exact one at K = 2,000, and not at K = 2.

    For noise contrast that is so of a normalised model, so log Z is given: one hidden vector, and its sum.
    """
    head = of(D, V, COUNTS, proposal=kind, text=text().numpy()).double()
    with torch.no_grad():
        head.weight.normal_()
    one = torch.randn(1, D, dtype=torch.float64)
    hidden, target = one.repeat(6, 1).requires_grad_(), torch.tensor([0, 3, 3, 7, 1, 19])
    head.eval()
    inputs = [hidden, head.weight, head.bias]
    exact = torch.cat([part.flatten() for part in torch.autograd.grad(head(hidden, target).loss, inputs)])
    if of is NoiseContrastive:
        head.log_z.value.fill_(float((one @ head.weight.T + head.bias).logsumexp(-1)))
    head.train()
    few, many = (distances(head, samples, hidden, target, exact) for samples in (2, 2000))
    assert many < 0.02
    assert few > 0.05
