"""Filters pairs for training, and counts each reason to leave one out.

As Rush et al. do, it leaves out pairs of extreme lengths, pairs whose sides share no content word, titles with bylines
and editing marks, and duplicates.
"""

import hashlib
import re
from collections import Counter

from coterie_lab.data.settings import Limits

# Stop words, which unrelated sentences share.
FUNCTION_WORDS = """
a about after against all also an and any are as at be because been before between but by can could did do does down
during for from had has have he her his how if in into is it its may more most n't new no not of off on one or out
over said say says she should so some than that the their them then there they this to two under up was we were what
when where which who why will with would you your 's
"""
BYLINE = re.compile(r"^by [a-z]+ [a-z]+|\b(?:in brief|briefs|roundup|advisory|correction|newsbrief)\b|\*\*|//|http")
_FUNCTION_WORDS = frozenset(FUNCTION_WORDS.split())
REASONS = {
    "empty": "a side is empty once its marks are gone",
    "short_article": "a sentence of too few words",
    "long_article": "a sentence of too many words",
    "short_title": "a title of too few words",
    "long_title": "a title of too many words",
    "byline": "a byline or an editing mark in the title",
    "overlap": "no word that carries meaning in common",
    "duplicate": "a sentence that was there before",
}


class Filter:
    """Decides which pairs to keep, and counts the reasons against others."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.counted: Counter[str] = Counter()
        self.seen: set[bytes] = set()  # hashes of sentences: 8 bytes each, whatever their length

    def keeps(self, article: list[str], title: list[str]) -> bool:
        """Whether a pair is to be kept."""
        reason = self._reason(article, title)
        if reason is not None:
            self.counted[reason] += 1
        return reason is None

    def _reason(self, article: list[str], title: list[str]) -> str | None:
        limits = self.limits
        if not article or not title:
            return "empty"
        for side, words, least, most in (
            ("article", article, limits.shortest_article, limits.longest_article),
            ("title", title, limits.shortest_title, limits.longest_title),
        ):
            if not least <= len(words) <= most:
                return f"{'short' if len(words) < least else 'long'}_{side}"
        if BYLINE.search(" ".join(title)):
            return "byline"
        if not _content(article) & _content(title):
            return "overlap"
        digest = hashlib.blake2b(" ".join(article).encode(), digest_size=8).digest()
        if digest in self.seen:
            return "duplicate"
        self.seen.add(digest)
        return None


def _content(words: list[str]) -> set[str]:
    """The content words, cut to five letters, so that `acquires` and `acquired` are one."""
    return {word[:5] for word in words if word not in _FUNCTION_WORDS and word[0].isalnum()}
