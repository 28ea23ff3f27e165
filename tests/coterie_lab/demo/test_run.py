"""The layer organises itself: on a generated language its clusters become the grammar's classes."""

import pytest
import torch

from coterie import SelfOrganizedSoftmax
from coterie_lab.data.grammar import default_grammar
from coterie_lab.demo.run import heads, some_clusters, train
from coterie_lab.demo.settings import Setting

SETTING = Setting(
    words=120_000, dev_words=10_000, width=64, length=16, epochs=3, learning_rate=4e-3, reorganize_every=40
)


def test_clusters_become_the_grammars_classes():
    grammar = default_grammar(words_per_class=20)
    text, dev = grammar.write(SETTING.words, 1), grammar.write(SETTING.dev_words, 2)
    counts = torch.bincount(text, minlength=800)
    torch.manual_seed(0)
    both = heads(grammar, SETTING, counts)
    assert both["full"]().counted is not None  # both are told how often words come
    head = both["self-organized"]()
    assert isinstance(head, SelfOrganizedSoftmax)
    ticks = []
    result = train(head, grammar, SETTING, text, dev, lambda n, perplexity: ticks.append((n, perplexity)))
    assert result.agreement[0] == pytest.approx(0, abs=0.05)
    assert result.agreement[-1] > 0.8
    assert result.perplexity[-1] < 1.2 * grammar.perplexity
    assert result.perplexity[0] > result.perplexity[-1]
    assert result.measures.cluster_perplexity < 12  # of 29 clusters; about 29 at the start
    assert ticks[-1][0] <= SETTING.epochs * 117
    label, words = some_clusters(head, grammar, n=3, length=4)[0]
    assert "·" in label
    assert all(word in grammar.words for word in words)
