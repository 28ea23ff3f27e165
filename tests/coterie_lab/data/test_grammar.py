"""The generated language follows its grammar."""

import pytest
import torch

from coterie_lab.data.grammar import default_grammar


def test_the_grammar_writes_what_it_says():
    grammar = default_grammar(words_per_class=20)
    text = grammar.write(60_000, seed=3)
    assert torch.equal(text, grammar.write(60_000, seed=3))
    classes = grammar.class_of[text]
    pairs = torch.zeros(40, 40).index_put_((classes[:-1], classes[1:]), torch.ones(59_999), accumulate=True)
    assert torch.allclose(pairs / pairs.sum(1, keepdim=True), grammar.transition.float(), atol=0.05)
    # The words' own log-probability under the grammar comes to its stated perplexity.
    log_p = grammar.transition[classes[:-1], classes[1:]].log() + grammar.word_given_class[text[1:]].log()
    assert float((-log_p.mean()).exp()) == pytest.approx(grammar.perplexity, rel=0.02)
    assert len(set(grammar.words)) == 800
