"""The settings of preparing text and pairs: the vocabulary, and the split."""

from dataclasses import dataclass
from pathlib import Path

from coterie_lab.options import check, option

WORDS = 69_000  # of the paper's pairs


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """The vocabulary of a text, and its parts."""

    min_count: int = option(1, "keep words that occur at least so often in the training part", least=1)
    max_vocab: int | None = option(None, "keep at most so many words, <unk> among them", unset="all", least=2)
    dev_chars: int | None = option(
        None, "characters at the text's end for development", unset="1,000,000, but at most a tenth", least=1
    )
    dev: Path | None = option(None, "the development part, in a file of its own", unset="the text's end")
    test: Path | None = option(None, "the test part, in a file of its own", unset="none")
    lower: bool = option(False, "lower-case the text", flags="--lower")
    eos: bool = option(False, "put <eos> at line ends", flags="--eos")

    def __post_init__(self) -> None:
        check(self)
        if self.dev is not None and self.dev_chars is not None:
            raise ValueError(
                "dev and dev_chars were both given: the development part is a file or the text's end, not both"
            )


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How many words each side of a pair may have."""

    shortest_article: int = option(5, "the fewest words of a sentence", "data", least=1)
    longest_article: int = option(100, "the most words of a sentence", "data", least=1)
    shortest_title: int = option(2, "the fewest words of a title", "data", least=1)
    longest_title: int = option(30, "the most words of a title", "data", least=1)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class PairSettings(Limits):
    """The vocabulary of pairs, their parts and their limits."""

    max_vocab: int = option(WORDS, "keep at most so many words of the titles, <unk> and <eos> among them", least=3)
    min_count: int = option(1, "keep words that occur at least so often in the titles", least=1)
    source_words: bool = option(
        False, "fill the vocabulary up with the most frequent words of the sentences", flags="--source-words"
    )
    valid: int | None = option(None, "pairs for validation", unset="2,000, but at most a 25th", least=1)
    test: int | None = option(None, "pairs for the test", unset="2,000, but at most a 25th", least=1)
    seed: int = option(0, "seed by which those pairs are drawn", least=0)
