"""What a layer says of itself: perplexities of the tokens since somebody asked."""

import math

import pytest
import torch

from tests.layers import SHAPES, WIDTH, make


@pytest.mark.parametrize("shape", SHAPES)
def test_float32_measures_multiply_to_the_perplexity(shape):
    head = SHAPES[shape]()
    out = head(torch.randn(31, WIDTH), torch.randint(0, head.n_classes, (31,)))
    measures = head.measures()
    assert measures.tokens == 31
    assert measures.perplexity == pytest.approx(out.loss.exp().item(), rel=1e-5)
    assert measures.cluster_perplexity * measures.in_cluster_perplexity == pytest.approx(measures.perplexity)
    assert head.measures().tokens == 0


def test_training_and_evaluation_are_measured_apart():
    head = make()
    head(torch.randn(5, WIDTH), torch.arange(5))
    head.eval()
    head(torch.randn(3, WIDTH), torch.arange(3))
    assert head.measures().tokens == 3
    assert head.train().measures().tokens == 5


def test_a_batch_that_is_not_finite_is_counted_nowhere():
    head = make(counts=None)
    hidden, target = torch.randn(5, WIDTH), torch.arange(5)
    head(hidden, target)
    head(hidden * torch.nan, target)
    assert head.counts.sum() == 5
    measures = head.measures()
    assert measures.tokens == 5
    assert math.isfinite(measures.perplexity)
