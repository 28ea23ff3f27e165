"""Normalises raw news text to the tokens that summarizers are trained on, like Rush et al.

It removes what belongs to the wire and not to the sentence (datelines, agencies, tickers, HTML); the rest becomes Penn
Treebank tokens in lower case, with every digit as `#`.
"""

import html
import re
from collections.abc import Callable
from functools import cache

from coterie_lab.data.folder import UNK
from coterie_lab.needed import needed_for

AGENCIES = (
    r"AP|Reuters|REUTERS|AFP|AFX|CP|UPI|UNI|PTI|IRNA|dpa|Canadian Press|NewsFactor|washingtonpost\.com|PC World|"
    r"SPACE\.com|Ziff Davis|USATODAY\.com|InfoWorld|MacCentral|Forbes\.com|SiliconValley\.com|TechWeb|The Motley Fool|"
    r"FT\.com|Investor's Business Daily|TheDeal\.com|Los Angeles Times|BusinessWeek Online|Getty Images|New York Post|"
    r"Editor and Publisher|Chicago Tribune|AdWeek\.com|CBC SPORTS ONLINE|Sports Network|Bloomberg|Xinhuanet"
)
# `<SRD>` and `<CPAC.O>` are tickers and `<b>` is HTML; `<Royal Bank of Canada>` is a name in brackets and stays.
TAG = re.compile(r"</?[a-z][a-z0-9]*(?:\s[^<>]*)?/?>|<[A-Za-z]+\s+[A-Za-z]+=[^<>]*>|</[A-Za-z][A-Za-z0-9]*>")
TICKER = re.compile(r"<[A-Z0-9][A-Z0-9.&'/-]{0,9}>")
QUOTE_LINKS = re.compile(r"\([^()]*\bQuote,\s*Profile,\s*Research[^()]*\)")
# `AP - …`, `TOKYO (Reuters) - …`, `Dubai, Nov 3 (UNI) …`, `BAGHDAD, Iraq, August 24 -- …`, `ISLAMABAD: …`
AGENCY_FIRST = re.compile(rf"^(?:{AGENCIES})\s*--?\s+")
AGENCY_IN_BRACKETS = re.compile(rf"^[^()]{{0,60}}\((?:[^()]{{1,40}}\)\s*(?:--?|:)|(?:{AGENCIES})\))\s+")
DATELINE = re.compile(
    r"^[A-Z][A-Z.'/ -]{2,40}(?:,\s[A-Z][A-Za-z.]*(?:\s[A-Z][A-Za-z.]*){0,2})*(?:,\s[A-Z][a-z]+\.?\s\d{1,2})?"
    r"\s*(?:--?|:)\s+(?=[\"'`A-Z0-9$])"
)
PLACE = re.compile(r"^[A-Z][a-z]+(?:\s[A-Z][a-z]+)?\s--?\s(?=[\"A-Z])")  # `London - The …`
CUT_SHORT = re.compile(r"(?:\s*\?\s*(?=&))?[\s&]*\.\.\.[\s&]*$")  # a feed's `… violence on & ... &`
UPDATE = re.compile(r"^(?:UPDATE|Update)\s*\d+\s*[-:]\s*|^(?:CORRECTED|CORRECT|WRAPUP|ADVISORY)\s*\d*\s*[-:]\s*")
AGENCY_LAST = re.compile(rf"\s*\((?:{AGENCIES}|Update\s*\d*|Correct(?:ed)?)\)\s*$")
CHARACTERS = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "—": " -- ", "–": " -- ", "\u00a0": " ", "•": " "})
DIGIT = re.compile(r"\d")
QUOTED = re.compile(r"(?:\"|''|``)\s*([^\"]+?)\s*(?:\"|'')")
# The tokenizer splits off a full stop only at the end, but a feed's items have several sentences.
SENTENCE_END = re.compile(r"\b(\w*[a-z0-9]{2})\.(?=''|\s+[`\"'A-Z(])")
ABBREVIATIONS = """
inc corp co ltd bros mr mrs ms dr st ft mt sen rep gov gen lt col sgt capt adm rev prof hon jr sr vs no dept
jan feb mar apr jun jul aug sept oct nov dec mon tue wed thu fri sat sun
ala ariz ark calif colo conn del fla ga ill ind kan ky la md mass mich minn miss mo mont neb nev okla ore pa tenn tex va
vt wash wis wyo
"""
_ABBREVIATIONS = frozenset(ABBREVIATIONS.split())
LOOSE_NOT = re.compile(r"n\s'\s?t\b")  # a feed's `weren 't`


def article(raw: str) -> list[str]:
    """The tokens of a sentence that is to be summarized."""
    text = _plain(raw)
    for mark in (AGENCY_FIRST, AGENCY_IN_BRACKETS, DATELINE, PLACE):
        text = mark.sub("", text, count=1)
    return tokens(text)


def title(raw: str) -> list[str]:
    """The tokens of a headline."""
    text = UPDATE.sub("", AGENCY_LAST.sub("", _plain(raw)))
    return tokens(CUT_SHORT.sub("", text))


def tokens(text: str) -> list[str]:
    """Penn Treebank tokens, in lower case, digits as `#`."""
    text = QUOTED.sub(r"`` \1''", LOOSE_NOT.sub("n't", text))
    text = SENTENCE_END.sub(lambda end: end[0] if end[1].lower() in _ABBREVIATIONS else f"{end[1]} .", text)
    split = _tokenizer()(text)
    return [DIGIT.sub("#", token.lower()) for token in split]


def ready(line: str) -> list[str]:
    """The tokens of a line that is tokenised already, as Gigaword is; any mark of an unknown word becomes `<unk>`."""
    return [UNK if token in ("UNK", "unk", UNK) else token for token in line.split()]


def _plain(raw: str) -> str:
    """Removes HTML, tickers and links to quotes."""
    text = html.unescape(raw).translate(CHARACTERS)
    text = QUOTE_LINKS.sub(" ", TICKER.sub(" ", TAG.sub(" ", text)))
    return " ".join(text.replace("<", " ").replace(">", " ").split())


@cache
def _tokenizer() -> Callable[[str], list[str]]:
    with needed_for("raw text"):
        from nltk.tokenize.treebank import TreebankWordTokenizer
    tokenizer = TreebankWordTokenizer()

    def split(text: str) -> list[str]:
        found: list[str] = tokenizer.tokenize(text, convert_parentheses=True)
        return found

    return split
