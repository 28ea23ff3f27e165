"""Draws follow the distribution, whatever is searched for them."""

import pytest
import torch
from scipy.stats import chisquare

from coterie import Partition, SelfOrganizedSoftmax, inference
from coterie.search import sampling
from tests.layers import SHAPES, WIDTH, make, with_empty_clusters, with_own_words

pytestmark = pytest.mark.usefixtures("no_vocabulary_is_small")


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
@pytest.mark.parametrize("make_head", [make, with_empty_clusters, with_own_words, SHAPES["all own words but two"]])
def test_draws_follow_the_distribution(make_head, options):
    check_draws(make_head, options)


@pytest.mark.parametrize("trial, temperature", [(0.0, 1.7), (0.002, 0.4), (0.002, 5.0), (1e9, 0.4), (1e9, 5.0)])
@pytest.mark.parametrize("make_head", [with_empty_clusters, with_own_words])
def test_tempered_draws_are_exact_whenever_they_are_given_up(make_head, monkeypatch, trial, temperature):
    monkeypatch.setattr(sampling, "TRIAL", trial)
    check_draws(make_head, {"temperature": temperature})


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


@pytest.mark.parametrize("temperature", [0, 1e-30, 1e-60])
@pytest.mark.parametrize("cut", [{}, {"top_k": 5}, {"top_p": 0.9}])
@pytest.mark.parametrize("make_head", [make, with_own_words])
def test_a_temperature_of_zero_or_next_to_it_is_the_argmax(make_head, temperature, cut):
    head = make_head()
    hidden = torch.randn(6, WIDTH)
    assert torch.equal(head.sample(hidden, temperature=temperature, **cut), head.predict(hidden))


def test_a_generator_repeats_its_draws():
    head = make()
    hidden = torch.randn(50, WIDTH)
    first, second = (head.sample(hidden, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)


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
