"""A prepared text: a vocabulary, and the ids of the text in memory-mapped arrays on disk.

Words are separated by white space. The text is read in blocks, twice: to count its words, then to write their ids. So
memory holds the distinct words and the characters of the development part, never the whole text.

Shapes: V words, T tokens.
"""

import hashlib
import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie_lab.data.arrays import Ids, Writer, dtype_of, mapped
from coterie_lab.data.folder import EOS, UNK, VOCABULARY, opened, refuse, whole, write_vocabulary
from coterie_lab.data.settings import TextSettings
from coterie_lab.data.sources import advancing, find, read
from coterie_lab.data.text8 import Progress

PARTS = ("train", "dev", "test")
FORMAT = "coterie-corpus"
DEV_CHARS = 1_000_000  # development part by default, or a tenth of a text shorter than ten times this
LONGEST = 1_000_000  # characters of a word: a longer one means that the text is not split into words


@dataclass(frozen=True)
class Corpus:
    """A prepared text: its vocabulary, the counts in the training part, and the ids of its parts."""

    path: Path
    words: list[str]
    counts: Tensor  # (V,) int64
    train: Ids  # (T,) memory-mapped, as are the others
    dev: Ids
    test: Ids | None
    source: dict[str, Any]  # the files and settings it was prepared from

    @classmethod
    def open(cls, path: str | Path) -> "Corpus":
        """Opens a folder that `prepare` wrote; raises if it is incomplete."""
        path = Path(path)
        with opened(path, FORMAT, "coterie lm prepare") as saved:
            words, counts, lengths = saved["words"], saved["counts"], saved["parts"]
            if sum(counts) != lengths["train"]:
                raise ValueError(f"the counts sum to {sum(counts)}, the training part has {lengths['train']} tokens")
            ids = {part: mapped(path / f"{part}.npy", n, dtype_of(len(words))) for part, n in lengths.items()}
            return cls(path, words, torch.tensor(counts), ids["train"], ids["dev"], ids.get("test"), saved["source"])

    @property
    def n_words(self) -> int:
        """V."""
        return len(self.words)


def prepare(
    sources: Sequence[str | Path],
    out: str | Path,
    *,
    force: bool = False,
    progress: Progress | None = None,
    **given: Any,
) -> Corpus:
    """Writes the folder `out` from text, and opens it; `given`: fields of `TextSettings`.

    The vocabulary has the words that occur at least `min_count` times in the training part, at most `max_vocab` of
    them with `<unk>` (and `<eos>`, which `eos` puts at every line's end). The development part is the file `dev`, or
    the last `dev_chars` characters of the text; if neither is given, the last million, or a tenth of a text shorter
    than ten million. `progress` hears of the bytes read so far and in all.
    """
    out = Path(out)
    sources = [sources] if isinstance(sources, (str, Path)) else sources
    settings = TextSettings(**given)
    lower, eos = settings.lower, settings.eos
    refuse(out, force, [VOCABULARY, *(f"{part}.npy" for part in PARTS)])
    apart = {part: Path(path) for part in ("dev", "test") if (path := getattr(settings, part)) is not None}
    files = {part: find([path]) for part, path in apart.items()}
    files["train"] = find(sources, [file.path for part in apart for file in files[part]], progress)
    size = {part: sum(file.size for file in found) for part, found in files.items()}
    advance = advancing(progress, sum(size.values()) + size["train"])  # the training part twice

    cut = None if "dev" in apart else Cut(settings.dev_chars)
    blocks = read(files["train"], advance)
    counts: Counter[str] = Counter()
    for tokens in split(cut.training_part(blocks) if cut else blocks, lower, eos):
        counts.update(tokens)
    words, kept = vocabulary(counts, settings.min_count, settings.max_vocab, always=[EOS] if eos else [])
    id_of = {word: n for n, word in enumerate(words)}
    told = {name: value for name, value in asdict(settings).items() if name not in ("dev", "test")}
    if cut:
        told["dev_chars"] = cut.dev_chars

    with whole(out, force) as folder:
        lengths = {}
        blocks = read(files["train"], advance)
        texts = dict(zip(PARTS, cut.parts(blocks), strict=False)) if cut else {"train": blocks}
        for part, text in chain(texts.items(), ((part, read(files[part], advance)) for part in apart)):
            lengths[part] = _write(folder / f"{part}.npy", split(text, lower, eos), id_of)
            if lengths[part] == 0:
                raise ValueError(f"the {part} part holds no words: give a text, or a split, that leaves it some")
        read_in_order = {part: files[part] for part in PARTS if part in files}
        write_vocabulary(folder, FORMAT, words, kept, lengths, told, read_in_order)
    return Corpus.open(out)


def digest(words: list[str], counts: Tensor, source: dict[str, Any]) -> str:
    """A hash that identifies prepared text, from its words, counts (V,), settings and files: sixteen letters."""
    files = [[file["sha256"] for file in files] for files in source.get("files", {}).values()]
    told = [words, counts.tolist(), source.get("settings"), files]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def split(blocks: Iterable[str], lower: bool = False, eos: bool = False) -> Iterator[list[str]]:
    """Splits blocks of text into lists of tokens; joins a word that two blocks share."""
    rest, last = "", "\n"
    for block in blocks:
        text = rest + block
        last = text[-1:] or last
        rest = "" if last.isspace() else text.rsplit(None, 1)[-1]
        if len(rest) > LONGEST:
            raise ValueError(
                f"the text has a word of more than {LONGEST:,} characters, {rest[:20]!r}…: words are separated by "
                "spaces or line ends; put them there first"
            )
        yield tokens_of(text[: len(text) - len(rest)], lower, eos)
    yield tokens_of(rest + ("\n" if eos and last != "\n" else ""), lower, eos)


def tokens_of(text: str, lower: bool, eos: bool) -> list[str]:
    """Those of a text that is whole; its last line ends only where a line's end is."""
    text = text.lower() if lower else text
    return (text.replace("\n", f" {EOS} ") if eos else text).split()


def vocabulary(
    counts: Counter[str], min_count: int, max_vocab: int | None, always: Sequence[str] = ()
) -> tuple[list[str], list[int]]:
    """`<unk>`, then words from frequent to rare, ties in alphabetical order; and their counts (V,)."""
    words = [word for word, n in counts.items() if word != UNK and (n >= min_count or word in always)]
    words.sort(key=lambda word: (word not in always, -counts[word], word))
    del words[len(words) if max_vocab is None else max_vocab - 1 :]
    words.sort(key=lambda word: (-counts[word], word))
    if not counts:
        raise ValueError("the text to train on holds no words: give more text, or a shorter development part")
    if not words:
        raise ValueError(
            f"the vocabulary has fewer than 2 words: none of {len(counts):,} different ones occurs {min_count:,} times "
            f"in {counts.total():,}; lower min_count, or give more text"
        )
    kept = [counts[word] for word in words]
    return [UNK, *words], [counts.total() - sum(kept), *kept]


@dataclass
class Cut:
    """Splits a text in two: its last characters are the development part.

    Its length is unknown until its end. During the first pass, as many characters are held back as may belong to the
    development part; afterwards the place is known.
    """

    dev_chars: int | None
    train_chars: int = field(default=0, init=False)

    def training_part(self, blocks: Iterable[str]) -> Iterator[str]:
        """Yields the training part of a text that is read for the first time."""
        held: deque[str] = deque()
        length = n_held = 0
        for block in blocks:
            held.append(block)
            length, n_held = length + len(block), n_held + len(block)
            while n_held - len(held[0]) >= (self.dev_chars or DEV_CHARS):
                n_held -= len(held[0])
                yield held.popleft()
        if self.dev_chars is None:
            self.dev_chars = min(DEV_CHARS, length // 10)
        if self.dev_chars >= length:
            raise ValueError(
                f"the development part was to be the last {self.dev_chars:,} characters of a text of {length:,}: ask "
                "`coterie lm prepare` for fewer, or give it a file of its own"
            )
        self.train_chars = length - self.dev_chars
        left = n_held - self.dev_chars
        for block in held:
            yield block[: max(left, 0)]
            left -= len(block)

    def parts(self, blocks: Iterator[str]) -> tuple[Iterator[str], Iterator[str]]:
        """Yields the training part; the development part is known after that."""
        after: list[str] = []

        def training_part() -> Iterator[str]:
            left = self.train_chars
            for block in blocks:
                yield block[:left]
                if len(block) >= left:
                    after.append(block[left:])
                    return
                left -= len(block)

        return training_part(), chain(after, blocks)


def _write(path: Path, text: Iterable[list[str]], id_of: dict[str, int]) -> int:
    """Writes the ids of a text; returns their number."""
    with Writer(path, dtype_of(len(id_of))) as array:
        for tokens in text:
            array.add(map(id_of.get, tokens, repeat(0)), len(tokens))
    return array.length
