"""Beam search: against all titles there are, against the dense distribution, and whatever the batch."""

import math
from itertools import product

import pytest
import torch

from coterie.search import exact as words_search
from coterie.search.words import Words
from coterie_lab.heads import build as build_head
from coterie_lab.models.beam import Beam, search
from coterie_lab.models.summarizer import Summarizer

EOS = 1


def model(
    n_words=6, head="self-organized", hidden=8, bidirectional=True, input_feeding=False, seed=0, sharp=3.0, **options
):
    """A summarizer with random weights, large enough that it prefers something."""
    torch.manual_seed(seed)
    layer = build_head(head, hidden, n_words, torch.ones(n_words, dtype=torch.int64), **options)
    found = Summarizer(
        n_words, EOS, hidden, hidden, layer, bidirectional, look_at_words=True, input_feeding=input_feeding
    )
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.copy_(torch.randn_like(parameter) * sharp / math.sqrt(hidden))
        if isinstance(getattr(layer, "projection", None), torch.nn.Parameter):
            layer.projection -= torch.eye(hidden).repeat(2, 1)  # the maps have such numbers
    return found.eval()


def sentences(n, n_words, longest=9):
    lengths = torch.randint(1, longest + 1, (n,))
    words = torch.randint(0, n_words, (n, int(lengths.max())))
    return words, lengths


def log_prob(found, article, length, title):
    """log P of a title word by word, from the whole distribution."""
    words = torch.tensor([title])
    hidden = found.hidden(article, length, words)
    return float(found.head.log_prob(hidden).gather(-1, words[..., None]).sum())


def titles(n_words, longest):
    """Every title that can be written: those that end, after a word at least, and those cut off."""
    others = [word for word in range(n_words) if word != EOS]
    for length in range(1, longest):
        yield from ((*words, EOS) for words in product(others, repeat=length))
    yield from product(others, repeat=longest)


@pytest.mark.parametrize("head", ["self-organized", "full"])
@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("input_feeding", [False, True])
@torch.no_grad()
def test_a_beam_with_room_for_everything_finds_all_titles_in_their_order(head, penalty, input_feeding):
    found = model(4, head, input_feeding=input_feeding, seed=3, sharp=1.0)
    article, length = sentences(3, 4)
    every = list(titles(4, 3))
    hypotheses = search(found, article, length, beam=len(every), longest=3, penalty=penalty)
    for row in range(3):
        scores = {title: log_prob(found, article[row : row + 1], length[row : row + 1], title) for title in every}
        empty = log_prob(found, article[row : row + 1], length[row : row + 1], (EOS,))
        assert sum(map(math.exp, (empty, *scores.values()))) == pytest.approx(1, abs=1e-5)
        written = [(*one.words, EOS) if one.ended else tuple(one.words) for one in hypotheses[row]]
        assert sorted(written) == sorted(every)
        assert [one.log_prob for one in hypotheses[row]] == pytest.approx(
            [scores[title] for title in written], abs=1e-5
        )
        best = max(every, key=lambda title: scores[title] / len(title) ** penalty)
        assert written[0] == best


def brute(found, article, length, beam, longest, end=True):
    """The same search written plainly, one sentence, over all words of every hypothesis."""
    live, done = [((), 0.0)], []
    for step in range(longest):
        grown = []
        for words, score in live:
            shifted = torch.tensor([[*words, 0]])
            row = found.head.log_prob(found.hidden(article, length, shifted))[0, -1]
            allowed = [word for word in range(len(row)) if (end and step > 0) or word != EOS]
            grown += [((*words, word), score + float(row[word])) for word in allowed]
        grown.sort(key=lambda one: -one[1])
        live = []
        for words, score in grown[: beam - len(done)]:
            live.append((words, score))
        ended = [one for one in live if one[0][-1] == EOS]
        done += ended
        live = [one for one in live if one[0][-1] != EOS]
        if step == longest - 1:
            done += live
        if not live:
            break
    return sorted(done, key=lambda one: -one[1])


@pytest.mark.parametrize("head", ["self-organized", "full", "hsm-frequency"])
@pytest.mark.parametrize(
    ("beam", "longest", "end"), [(1, 6, True), (1, 9, False), (2, 6, False), (3, 5, True), (6, 3, True)]
)
@pytest.mark.parametrize("input_feeding", [False, True])
@torch.no_grad()
def test_it_is_the_plain_search(head, beam, longest, end, input_feeding):
    found = model(7, head, input_feeding=input_feeding, seed=1, sharp=2.0)
    article, length = sentences(4, 7)
    hypotheses = search(found, article, length, beam=beam, longest=longest, end=end)
    for row in range(4):
        expected = brute(found, article[row : row + 1], length[row : row + 1], beam, longest, end)
        written = [(*one.words, EOS) if one.ended else tuple(one.words) for one in hypotheses[row]]
        assert written == [words for words, _ in expected]
        assert [one.log_prob for one in hypotheses[row]] == pytest.approx([score for _, score in expected], abs=1e-4)


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("input_feeding", [False, True])
def test_the_pruned_search_finds_what_the_dense_one_finds(end, input_feeding, monkeypatch):
    monkeypatch.setattr(words_search, "SMALL", 0)
    clusters = []
    own = Words.logits_of
    monkeypatch.setattr(Words, "logits_of", lambda *given: (clusters.append(1), own(*given))[1])
    found = model(3000, hidden=16, input_feeding=input_feeding, seed=2)
    article, length = sentences(20, 3000)
    opened = []

    def dense(hidden, k):
        opened.append(hidden.shape[0])
        return found.head.log_prob(hidden).topk(k)

    pruned = search(found, article, length, longest=12, end=end)
    assert clusters  # it did search
    plain = search(found, article, length, longest=12, end=end, topk=dense)
    assert [[one.words for one in each] for each in pruned] == [[one.words for one in each] for each in plain]
    assert opened[0] == 20
    assert all(EOS not in one.words for each in pruned for one in each)
    if not end:
        assert {len(one.words) for each in pruned for one in each} == {12}


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("input_feeding", [False, True])
@pytest.mark.parametrize("eager", [0.0, 8.0])  # to end a title
def test_the_rest_of_the_batch_makes_no_difference(bidirectional, input_feeding, eager, monkeypatch):
    # Sharper, what is fed would make of rounding, which is another in another batch, more than is allowed below.
    found = model(50, hidden=16, bidirectional=bidirectional, input_feeding=input_feeding, seed=4, sharp=2.0)
    with torch.no_grad():
        found.head.bias[EOS] += eager
        found.head.cluster_bias[found.head.partition.cluster_of[EOS]] += eager
    article, length = sentences(13, 50, longest=20)
    left, own = [], Beam.select
    monkeypatch.setattr(Beam, "select", lambda now, rows: (left.append(len(rows)), own(now, rows))[1])
    together = search(found, article, length, longest=12)
    assert bool(left) == bool(eager)  # the eager are done with some sentences long before others
    for row in range(13):
        n = int(length[row])
        alone = search(found, article[row : row + 1, :n], length[row : row + 1], longest=12)[0]
        assert [one.words for one in alone] == [one.words for one in together[row]]
        assert [one.looked for one in alone] == [one.looked for one in together[row]]
        assert [one.log_prob for one in alone] == pytest.approx([one.log_prob for one in together[row]], abs=1e-4)
        assert all(place < n for one in alone for place in one.looked)


@pytest.mark.parametrize(
    ("options", "said"), [({"beam": 0}, "one hypothesis at least"), ({"longest": 0}, "room for a word")]
)
def test_wrong_numbers_are_named(options, said):
    with pytest.raises(ValueError, match=said):
        search(model(), torch.zeros(1, 2, dtype=torch.int64), torch.tensor([2]), **options)
