"""ROUGE-1, ROUGE-2 and ROUGE-L: full-length F1, and recall within 75 bytes as DUC-2004 was scored.

N items. A summary is one line, taken as one sentence.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coterie_lab.needed import needed_for

PerItem = NDArray[np.float64]  # (N,)


@dataclass(frozen=True)
class Scores:
    """The scores of every item, each from 0 to 1."""

    rouge1: PerItem
    rouge2: PerItem
    rougeL: PerItem


def full_length(hypotheses: Sequence[str], references: Sequence[str], stem: bool = False) -> Scores:
    """F1 of each hypothesis (N of them) against its one reference, by the package rouge-score."""
    with needed_for("full-length ROUGE"):
        from rouge_score.rouge_scorer import RougeScorer
    _check(hypotheses, references)
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=stem)
    found = [scorer.score(reference, hypothesis) for hypothesis, reference in zip(hypotheses, references, strict=True)]
    return Scores(*(np.array([item[name].fmeasure for item in found]) for name in ("rouge1", "rouge2", "rougeL")))


def limited_recall(hypotheses: Sequence[str], references: Sequence[Sequence[str]], limit: int = 75) -> Scores:
    """Recall of each hypothesis (N of them) within `limit` bytes against one or more references of its own.

    What `ROUGE-1.5.5.pl -n 2 -m -b 75 -f A` computes, without its list of irregular forms: the references are cut too,
    and hits and lengths are summed over the references of an item before they are divided.
    """
    _check(hypotheses, references)
    if limit < 1:
        raise ValueError(f"limit is a number of bytes, at least 1; got {limit}")
    stem = _stemmer()
    rows = np.zeros((len(hypotheses), 3))
    for item, (hypothesis, its_references) in enumerate(zip(hypotheses, references, strict=True)):
        if isinstance(its_references, str) or not its_references:
            raise ValueError(f"item {item} needs a list of one or more references; got {its_references!r}")
        given = words(hypothesis, limit, stem)
        hits, lengths = np.zeros(3), np.zeros(3)
        for reference in its_references:
            wanted = words(reference, limit, stem)
            hits += [_shared(given, wanted), _shared(pairwise(given), pairwise(wanted)), lcs(given, wanted)]
            lengths += [len(wanted), max(len(wanted) - 1, 0), len(wanted)]
        rows[item] = np.divide(hits, lengths, out=np.zeros(3), where=lengths > 0)
    return Scores(*rows.T.copy())


def words(text: str, limit: int, stem: Callable[[str], str]) -> list[str]:
    """The words of the first `limit` bytes of a text, lower-case, those of more than three letters stemmed."""
    # Like the script, this never decodes: a byte outside ASCII separates words, so half a character at the cut does no
    # harm, and the part of a word before the cut is a word.
    kept = re.sub(rb"[^a-z0-9]", b" ", text.encode()[:limit].lower())
    return [stem(word) if len(word) > 3 else word for word in kept.decode("ascii").split()]


def lcs(a: Sequence[str], b: Sequence[str]) -> int:
    """The length of the longest common subsequence."""
    lengths = [0] * (len(b) + 1)  # of the words of a so far and the first words of b
    for word in a:
        before = lengths
        lengths = [0]
        for at, other in enumerate(b):
            lengths.append(before[at] + 1 if word == other else max(before[at + 1], lengths[at]))
    return lengths[-1]


def _shared(a: Iterable[Hashable], b: Iterable[Hashable]) -> int:
    """The size of the multiset intersection of a and b."""
    return (Counter(a) & Counter(b)).total()


@cache
def _stemmer() -> Callable[[str], str]:
    """The original Porter stemmer; NLTK's default has extensions that give other stems."""
    with needed_for("limited-length ROUGE"):
        from nltk.stem.porter import PorterStemmer
    return cache(PorterStemmer(mode=PorterStemmer.ORIGINAL_ALGORITHM).stem)


def _check(hypotheses: Sequence[str], references: Sequence[object]) -> None:
    if len(hypotheses) != len(references) or not hypotheses:
        raise ValueError(
            f"each of one or more hypotheses needs its reference; got {len(hypotheses):,} hypotheses and "
            f"references for {len(references):,}"
        )
