"""CNN-softmax: words have vectors from their spelling, and numbers of their own."""

import torch
import torch.nn.functional as F

from tests.coterie_lab.heads.samples import WORDS, D, make, problem


def test_words_never_seen_have_vectors_from_their_spelling():
    head = make("cnn").double().eval()
    with torch.no_grad():
        known = head.vectors(WORDS[5:7])
        hidden = torch.randn(D, dtype=torch.float64)
        logits = known[:, :-1] @ hidden + known[:, -1]
        torch.testing.assert_close(head.log_prob(hidden)[5:7].diff(), logits.diff())
        new = head.vectors(["word5", "wörd", "a" * 100, ""])
    assert new.shape == (4, D + 1)
    assert len(new.unique(dim=0)) == 4


def test_words_spelled_alike_differ_by_numbers_of_their_own():
    head = make("cnn").double().eval()
    with torch.no_grad():
        head.correction.zero_()
        spelled_alone = head.vectors([WORDS[5], "never seen"])
        head.correction.normal_()
    corrected = head.vectors([WORDS[5], "never seen"])
    own = head.projection.correct.weight @ head.correction[5]
    torch.testing.assert_close(corrected[0] - spelled_alone[0], own)
    assert torch.equal(corrected[1], spelled_alone[1])
    plain = make("cnn", correction=0)
    assert plain.correction is None
    assert plain(*problem(3)).loss.isfinite()


def test_products_of_spelling_are_as_wide_as_a_gpu_likes(monkeypatch):
    widths, linear = [], F.linear

    def noted(x, weight, *rest):
        widths.append(weight.shape[0])
        return linear(x, weight, *rest)

    monkeypatch.setattr(F, "linear", noted)
    assert make("cnn").projection(torch.randint(0, 257, (3, 24)), torch.randn(3, 128)).shape == (3, D + 1)
    assert widths == [528, 2 * 528, 24, 24]  # for 525 features, twice as many, and D + 1 numbers twice


def test_vectors_of_all_words_are_made_once_for_an_evaluation():
    head = make("cnn").eval()
    hidden, target = problem(3)
    calls = []
    head.projection.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        before = head(hidden, target).loss
        head(hidden, target)
        head.predict(hidden)
        assert len(calls) == 1
        head.projection.out.weight += 1  # whatever changes them is seen
        assert head(hidden, target).loss != before
        assert len(calls) == 2
        head.train().eval()
        head(hidden, target)
        assert len(calls) == 3
