"""The word level as the search asks it: fetched in blocks, or by several threads."""

import pytest
import torch

from coterie.search import words
from coterie.search.words import Words
from tests.layers import make

pytestmark = pytest.mark.usefixtures("no_vocabulary_is_small")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
def test_words_fetched_in_blocks_are_those_fetched_at_once(monkeypatch, dtype, bias):
    head = make(500, in_features=8, bias=bias, dtype=dtype)
    asked, hidden = torch.randperm(500)[:41], torch.randn(3, 8, dtype=dtype)
    level = Words(head.weight, head.bias, head.partition)
    with torch.no_grad():
        monkeypatch.setattr(words, "BLOCK", 7)
        torch.testing.assert_close(level._logits_in_blocks(hidden, asked), level.logits_of(hidden, asked))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("own_words", [0, 300])
def test_several_threads_search_as_one_does(monkeypatch, autocast, own_words):
    monkeypatch.setattr(words, "ASKING", 0)  # a product for each cluster, which is what threads share
    monkeypatch.setattr(words, "FEW_NUMBERS", 0)
    monkeypatch.setattr(words, "FEW_CLUSTERS", 0)
    head = make(3000, in_features=16, projection=False, own_words=own_words)
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
