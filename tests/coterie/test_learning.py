"""The layer organises itself: on a generated language its clusters become the grammar's classes."""

import pytest
import torch

from coterie import SelfOrganizedSoftmax
from coterie_lab.data.grammar import default_grammar
from coterie_lab.demo.run import Setting, heads, some_clusters, train
from tests.layers import WIDTH

SETTING = Setting(
    words=120_000, dev_words=10_000, width=64, length=16, epochs=3, learning_rate=4e-3, reorganize_every=40
)


@pytest.fixture(scope="module")
def grammar():
    return default_grammar(words_per_class=20)


def test_the_grammar_writes_what_it_says(grammar):
    text = grammar.write(60_000, seed=3)
    assert torch.equal(text, grammar.write(60_000, seed=3))
    classes = grammar.class_of[text]
    pairs = torch.zeros(40, 40).index_put_((classes[:-1], classes[1:]), torch.ones(59_999), accumulate=True)
    assert torch.allclose(pairs / pairs.sum(1, keepdim=True), grammar.transition.float(), atol=0.05)
    # The words' own log-probability under the grammar comes to its stated perplexity.
    log_p = grammar.transition[classes[:-1], classes[1:]].log() + grammar.word_given_class[text[1:]].log()
    assert float((-log_p.mean()).exp()) == pytest.approx(grammar.perplexity, rel=0.02)
    assert len(set(grammar.words)) == 800


def test_clusters_become_the_grammars_classes(grammar):
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


def test_cluster_perplexity_falls_when_words_move_to_their_company():
    """Two groups of words, each always in its own context: one reorganisation brings them together."""
    torch.manual_seed(1)
    directions = torch.randn(2, WIDTH)
    head = SelfOrganizedSoftmax(WIDTH, 8, torch.full((8,), 100), n_clusters=2, reorganize_every=50, projection=False)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.05)
    seen = []
    for update in range(200):
        target = torch.randint(0, 8, (64,))
        hidden = directions[target % 2] + 0.1 * torch.randn(64, WIDTH)
        head(hidden, target).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        head.step()
        if update % 50 == 48:
            seen.append(head.measures().cluster_perplexity)
    assert head.partition.to_lists() in ([[0, 2, 4, 6], [1, 3, 5, 7]], [[1, 3, 5, 7], [0, 2, 4, 6]])
    assert seen[-1] < 1.1 < seen[0]
