"""The best extensions of several hypotheses together, against all extensions there are."""

import pytest
import torch

from coterie.search import exact as search
from coterie.search import words
from coterie.search.words import Words
from tests.layers import make, with_own_words


def plainly(head, hidden, score, k):
    """Over all words of every hypothesis."""
    total = head.log_prob(hidden) + score[..., None]  # (..., B, V)
    values, found = total.flatten(-2).topk(k)
    return values, found // head.n_classes, found % head.n_classes


def check(head, hidden, score, k):
    values, hypothesis, word = head.extend(hidden, score, k)
    expected, parents, best = plainly(head, hidden, score, k)
    assert torch.allclose(values, expected, atol=1e-5)
    assert torch.equal(hypothesis[values > -torch.inf], parents[values > -torch.inf])
    assert torch.equal(word[values > -torch.inf], best[values > -torch.inf])


@pytest.fixture
def searched(monkeypatch):
    """Searches however few words there are; the number of words of each fetch."""
    monkeypatch.setattr(search, "SMALL", 0)
    fetched, own = [], Words.logits_of

    def logits_of(self, hidden, asked, scratch=None):
        fetched.append(asked.numel())
        return own(self, hidden, asked, scratch)

    monkeypatch.setattr(Words, "logits_of", logits_of)
    return fetched


@pytest.mark.parametrize("hypotheses", [1, 2, 5])
@pytest.mark.parametrize("questions", [1, 3, 20])
@pytest.mark.parametrize("sharpness", [0.0, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("asking", [0, words.ASKING])  # a product for each cluster, or one for all of a wave
@pytest.mark.parametrize("own_words", [0, 300])
def test_they_are_the_best_of_all(searched, monkeypatch, questions, hypotheses, sharpness, asking, own_words):
    monkeypatch.setattr(words, "ASKING", asking)
    # In float32 the sums of large logits differ by more than is allowed.
    head = make(3000, in_features=16, own_words=own_words).double()
    hidden = sharpness * torch.randn(questions, hypotheses, 16, dtype=torch.float64)
    score = 3 * torch.randn(questions, hypotheses, dtype=torch.float64)
    for k in (1, 5, 40):
        check(head, hidden, score, k)


@pytest.mark.parametrize("questions", [1, 6])
@pytest.mark.parametrize("own_words", [0, 300])
def test_hypotheses_that_are_not_there_are_not_extended(searched, questions, own_words):
    head = make(3000, in_features=16, own_words=own_words)
    score = torch.randn(questions, 4)
    score[:, 2] = -torch.inf
    score[-1, 1:] = -torch.inf
    for sharpness in (0.1, 3.0):
        hidden = sharpness * torch.randn(questions, 4, 16)
        check(head, hidden, score, 5)
        assert not (head.extend(hidden, score, 5)[1] == 2).any()


@pytest.mark.parametrize("own_words", [0, 9])
def test_a_question_without_any_has_nothing_to_find(own_words):
    head = make(50, in_features=16, own_words=own_words)
    score = torch.tensor([[-torch.inf, -torch.inf], [0.0, -1.0]])
    values, _, _ = head.extend(torch.randn(2, 2, 16), score, 3)
    assert values[0].tolist() == [-torch.inf] * 3
    assert values[1].isfinite().all()


@pytest.mark.parametrize("own_words", [0, 1, 3, 7])
def test_more_than_one_hypothesis_alone_can_give(searched, own_words):
    head = make(7, in_features=16, own_words=own_words)
    check(head, torch.randn(2, 3, 16), torch.randn(2, 3), 21)
    score = torch.tensor([[0.0, -torch.inf, -torch.inf]])
    values, _, _ = head.extend(torch.randn(1, 3, 16), score, 9)
    assert values.isfinite().sum() == 7


@pytest.mark.parametrize("questions", [1, 3])
def test_few_words_that_stand_alone_extend_several_hypotheses(searched, questions):
    head = make(3000, in_features=16, own_words=3).double()
    with torch.no_grad():
        head.bias[head.partition.own] += 100
    hidden, score = torch.randn(questions, 5, 16).double(), torch.randn(questions, 5).double()
    check(head, hidden, score, 12)
    assert not searched


@pytest.mark.parametrize("questions", [1, 3])
def test_fewer_clusters_are_opened_than_for_each_hypothesis_by_itself(searched, questions):
    head = make(50_000, in_features=8, reorganize_every=None, counts=None)
    hidden = 4 * torch.randn(questions, 5, 8)
    score = -2.0 * torch.arange(5.0).expand(questions, 5)
    head.extend(hidden, score, 5)
    together = sum(searched)
    searched.clear()
    head.topk(hidden, 5)
    assert 0 < together < sum(searched) / 2


def test_a_wave_holds_no_more_than_there_is_room_for(searched, monkeypatch):
    head = make(50_000, in_features=8, reorganize_every=None)
    most, held, own = 6 * head.partition.capacity, [], Words.open  # one cluster each

    def open(self, hidden, row, cluster):
        held.append(row.numel() * self.partition.capacity)
        return own(self, hidden, row, cluster)

    monkeypatch.setattr(Words, "open", open)
    hidden, score = 3 * torch.randn(6, 5, 8), torch.randn(6, 5)
    check(head, hidden, score, 10)
    assert max(held) > most
    held.clear()
    monkeypatch.setattr(search, "MOST_FOUND", most)
    check(head, hidden, score, 10)
    assert held
    assert max(held) <= most


def test_any_shape_and_precision():
    head = with_own_words(300, in_features=16)
    check(head, torch.randn(2, 4, 3, 16), torch.randn(2, 4, 3), 6)
    values, hypothesis, word = head.extend(torch.randn(3, 16), torch.zeros(3), 2)  # one question
    assert values.shape == hypothesis.shape == word.shape == (2,)
    double = make(300, in_features=16).double()
    check(double, torch.randn(2, 3, 16).double(), torch.randn(2, 3).double(), 6)
    for dtype, found in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        assert head.extend(torch.randn(3, 16), torch.zeros(3, dtype=dtype), 2)[0].dtype == found


@pytest.mark.parametrize(
    ("score", "k", "said"),
    [(torch.zeros(2, 4), 5, r"shape \(2, 3\); got \(2, 4\)"), (torch.zeros(2, 3), 0, "from 1 to 900"),
     (torch.zeros(2, 3), 901, "got 901")],
)  # fmt: skip
def test_wrong_questions_are_named(score, k, said):
    with pytest.raises(ValueError, match=said):
        make(300, in_features=16).extend(torch.randn(2, 3, 16), score, k)


def test_where_nobody_asks_who_is_there_the_absent_are_not_extended_either(monkeypatch):
    """A compiler cannot ask, and on a GPU the host would wait for the answer."""
    head = with_own_words(300, in_features=16)
    hidden, score = torch.randn(2, 3, 16), torch.randn(2, 3)
    expected = plainly(head, hidden[:, ::2], score[:, ::2], 7)
    hidden[:, 1], score[:, 1] = torch.nan, -torch.inf
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    values, hypothesis, word = head.extend(hidden, score, 7)
    torch.testing.assert_close((values, hypothesis, word), (expected[0], 2 * expected[1], expected[2]))
