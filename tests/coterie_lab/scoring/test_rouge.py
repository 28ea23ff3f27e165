"""ROUGE against values worked out by hand, the original script's output and rouge-score; intervals against theory."""

import random

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer

from coterie_lab.scoring import rouge
from coterie_lab.scoring.bootstrap import difference, interval
from coterie_lab.scoring.rouge import full_length, limited_recall

BY_THE_SCRIPT = [  # (hypothesis, references, recall of ROUGE-1, -2, -L)
    (
        "Schröder’s party faces defeat in Düsseldorf – voters angry about jobs, pensions and taxes",
        [
            "Schröder’s Social Democrats facing a historic defeat in the elections at Düsseldorf",
            "Angry voters in Düsseldorf desert Schroeder's party over pensions",
            "Defeat looms for chancellor's party: unemployment, pension cuts anger the voters",
            "German voters turn on the ruling party",
        ],
        (0.41860, 0.17949, 0.27907),
    ),
    (
        "stocks fall as oil prices rise again , dollar slips against yen in thin holiday trading",
        [
            "oil prices push stocks down ; dollar slipping",
            "Wall Street stocks fell on Friday as the price of oil climbed above $50 a barrel again",
            "stock prices fall , oil prices rise",
            "U.S. stocks off on oil-price worries; yen gains against dollar in holiday-thinned trading",
        ],
        (0.47727, 0.12500, 0.38636),
    ),
    (
        "the the the cat cat",
        ["the cat", "a cat sat by the other cat", "the dog", "cats"],
        (0.58333, 0.12500, 0.50000),
    ),
    (
        "日本" * 12 + " talks resume",
        ["talks resumed in 日本", "日本" * 12 + " talk", "Resuming: talks", "no hope"],
        (0.12500, 0.00000, 0.12500),
    ),
]


def first(scores):
    return tuple(float(per_item[0]) for per_item in (scores.rouge1, scores.rouge2, scores.rougeL))


def test_full_length_f1_by_hand():
    # Words: the cat on the mat, 5 of 6 and 6. Pairs: the-cat, on-the, the-mat, 3 of 5 and 5. In order: all 5 words.
    same_length = full_length(["the cat sat on the mat"], ["The cat was on the mat."])
    assert first(same_length) == pytest.approx((5 / 6, 3 / 5, 5 / 6))
    # Words: police the gunman, 3 of 4 and 6: 2 × 3 / (4 + 6). Pairs: the-gunman, 1 of 3 and 5: 2 × 1 / (3 + 5).
    # With stems kill is shared too: 2 × 4 / 10, 2 × 3 / 8.
    pair = ["police kill the gunman"], ["police killed the gunman in paris"]
    assert first(full_length(*pair)) == pytest.approx((0.6, 0.25, 0.6))
    assert first(full_length(*pair, stem=True)) == pytest.approx((0.8, 0.75, 0.8))
    # The same words backwards: all words, no pair, one word in order.
    assert first(full_length(["a b c d"], ["d c b a"])) == pytest.approx((1, 0, 1 / 4))


def test_limited_recall_by_hand_sums_over_references_before_it_divides():
    # Stems: polic kill the gunman.
    # First reference, polic kill gunman: 3 words of 3; polic-kill, 1 pair of 2; in order 3 of 3.
    # Second, the gunman was kill by polic: 4 of 6; the-gunman, 1 of 5; in order the gunman, 2 of 6.
    # Sums: 7 of 9, 2 of 7, 5 of 9. The better reference alone would give 1, 1/2 and 1, the mean of both 5/6, 7/20, 2/3.
    references = ["Police kill gunman", "The gunman was killed by police"]
    found = limited_recall(["police killed the gunman"], [references])
    assert first(found) == pytest.approx((7 / 9, 2 / 7, 5 / 9))
    best = RougeScorer(["rouge1"], use_stemmer=True).score_multi(references, "police killed the gunman")
    assert best["rouge1"].recall == 1  # what we must not compute


@pytest.mark.parametrize("hypothesis, references, expected", BY_THE_SCRIPT)
def test_limited_recall_is_what_the_original_script_prints(hypothesis, references, expected):
    # ROUGE-1.5.5.pl -n 2 -m -b 75 -f A -d -z SPL, its list of irregular forms (fell: fall) emptied.
    assert first(limited_recall([hypothesis], [references])) == pytest.approx(expected, abs=6e-6)


def test_limited_recall_counts_as_rouge_score_does():
    # One reference, no cut in reach, the same words: recall must be that of rouge-score, repeated words and all.
    class OurWords:
        def tokenize(self, text):
            return rouge.words(text, 10_000, rouge._stemmer())

    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], tokenizer=OurWords())
    draw = random.Random(0)
    vocabulary = ["the", "of", "oil", "price", "prices", "priced", "talks", "talking", "a1", "Élysée", "yen-based"]
    texts = [" ".join(draw.choices(vocabulary, k=draw.randint(0, 14))) for _ in range(400)]
    hypotheses, references = texts[:200], texts[200:]
    ours = limited_recall(hypotheses, [[one] for one in references], limit=10_000)
    theirs = [scorer.score(reference, one) for one, reference in zip(hypotheses, references, strict=True)]
    for name in ("rouge1", "rouge2", "rougeL"):
        np.testing.assert_allclose(getattr(ours, name), [item[name].recall for item in theirs], atol=1e-12)
    assert 0.1 < ours.rouge2.mean() < ours.rougeL.mean() < ours.rouge1.mean() < 1


def test_the_cut_is_in_bytes_of_the_text_and_may_part_a_word():
    def words(text, limit=75):
        return rouge.words(text, limit, rouge._stemmer())

    assert words("x" * 70 + " abcdefgh") == ["x" * 70, "abcd"]  # 70 + 1 + 4 bytes
    assert words(" " * 74 + "ab") == ["a"]  # blanks count
    assert words("é" * 37 + "ab") == ["a"]  # 37 × 2 + 1
    assert words("日" * 24 + "ab日c") == ["ab"]  # 24 × 3 + 2, then a third of a character
    assert words("café Über-raschung €5") == ["caf", "ber", "raschung", "5"]  # letters outside ASCII part words
    text = "a é 日 🙂 b 🙂🙂 c"
    for limit in range(1, len(text.encode()) + 2):
        assert (
            words(text, limit)
            == text.encode()[:limit].decode(errors="ignore").encode("ascii", "ignore").decode().split()
        )


def test_stems_are_those_of_the_original_algorithm_and_of_words_longer_than_three_letters():
    # Original: skies → ski; NLTK's extension: sky. Stemmed, gas would be ga.
    assert limited_recall(["skies"], [["ski"]]).rouge1[0] == 1
    assert limited_recall(["gas"], [["ga"]]).rouge1[0] == 0
    assert limited_recall(["PRICES"], [["price"]]).rouge1[0] == 1


def test_nothing_said_and_nothing_to_say_score_zero():
    found = limited_recall(["", "...", "a", "a b"], [["a b"], ["a b"], ["---"], ["--", "a b"]])
    assert found.rouge1.tolist() == [0, 0, 0, 1]
    assert found.rouge2.tolist() == [0, 0, 0, 1]
    assert found.rougeL.tolist() == [0, 0, 0, 1]
    assert full_length(["", "a"], ["a b", "--"]).rouge1.tolist() == [0, 0]


def test_what_does_not_fit_is_refused():
    for score, references in ((full_length, ["a"]), (limited_recall, [["a"]])):
        with pytest.raises(ValueError, match="2 hypotheses and references for 1"):
            score(["a", "b"], references)
        with pytest.raises(ValueError, match="one or more"):
            score([], [])
    with pytest.raises(ValueError, match="item 1 needs a list of one or more references; got 'b'"):
        limited_recall(["a", "b"], [["a"], "b"])
    with pytest.raises(ValueError, match="item 0 needs a list of one or more references"):
        limited_recall(["a"], [[]])
    with pytest.raises(ValueError, match="at least 1; got 0"):
        limited_recall(["a"], [["a"]], limit=0)


def test_the_interval_holds_the_true_mean_about_as_often_as_it_says():
    draw = np.random.default_rng(0)
    trials = [interval(draw.exponential(size=80), samples=300, level=0.9) for _ in range(300)]
    held = np.mean([low <= 1 <= high for low, _, high in trials])
    assert 0.84 < held < 0.93  # of a skewed distribution a percentile interval holds a little less than 0.9


def test_the_interval_is_as_wide_as_theory_says_and_repeats_itself():
    values = np.random.default_rng(1).normal(3, 2, size=2000)
    low, mean, high = interval(values)
    assert mean == pytest.approx(values.mean())
    error = values.std() / np.sqrt(len(values))
    assert (mean - low, high - mean) == pytest.approx((1.96 * error, 1.96 * error), rel=0.12)
    assert interval(values) == (low, mean, high) != interval(values, seed=1)
    narrow = interval(values, level=0.5)
    assert low < narrow.low < mean < narrow.high < high
    assert interval([0.25] * 9) == (0.25, 0.25, 0.25)


def test_a_paired_difference_sees_what_hard_and_easy_items_hide():
    draw = np.random.default_rng(2)
    hardness = draw.normal(0, 1, size=200)
    better = hardness + 0.1 + draw.normal(0, 0.1, size=200)
    low, mean, high = difference(better, hardness)
    assert 0 < low < mean < high
    assert mean == pytest.approx((better - hardness).mean())
    assert interval(better).low < interval(hardness).mean  # apart, the two intervals tell nothing
    assert difference(hardness, hardness) == (0, 0, 0)
    with pytest.raises(ValueError, match=r"\(200,\) and \(3,\)"):
        difference(hardness, [1, 2, 3])


@pytest.mark.parametrize(
    "values, options, message",
    [
        ([], {}, r"shape \(0,\)"),
        ([[1.0]], {}, r"shape \(1, 1\)"),
        ([0.0, float("nan")], {}, "item 1 is nan"),
        ([1.0], {"samples": 0}, "at least 1; got 0"),
        ([1.0], {"level": 95}, "such as 0.95; got 95"),
    ],
)
def test_intervals_of_nonsense_are_refused(values, options, message):
    with pytest.raises(ValueError, match=message):
        interval(values, **options)
