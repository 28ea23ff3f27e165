"""Titles for lines of text, in their order.

Shapes: N sentences, S words of a sentence.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import torch

from coterie_lab.data.folder import UNK
from coterie_lab.models.beam import Hypothesis, TopK, search
from coterie_lab.tasks.summarization.settings import Decoding
from coterie_lab.tasks.summarization.trained import Trained

WINDOW = 32  # batches that are sorted by length together


def summarize(trained: Trained, lines: Iterable[str], decoding: Decoding, topk: TopK | None = None) -> Iterator[str]:
    """The title of each line; of an empty one, an empty one."""
    remaining = iter(lines)
    while window := list(islice(remaining, WINDOW * decoding.batch)):
        yield from _window(trained, window, decoding, topk)


def _window(trained: Trained, lines: Sequence[str], decoding: Decoding, topk: TopK | None) -> list[str]:
    sentences = [trained.tokens(line) for line in lines]
    titles = [""] * len(lines)
    # Sentences of like length side by side: little is filled up.
    order = sorted((n for n, sentence in enumerate(sentences) if sentence), key=lambda n: len(sentences[n]))
    for begin in range(0, len(order), decoding.batch):
        chosen = order[begin : begin + decoding.batch]
        for n, found in zip(chosen, _search(trained, [sentences[n] for n in chosen], decoding, topk), strict=True):
            titles[n] = write_down(trained, sentences[n], found, decoding.replace_unknown)
    return titles


def _search(
    trained: Trained, sentences: Sequence[list[str]], decoding: Decoding, topk: TopK | None
) -> list[Hypothesis]:
    """The best hypothesis of each."""
    width = max(map(len, sentences))
    ids = [trained.ids(sentence) + [0] * (width - len(sentence)) for sentence in sentences]
    found = search(
        trained.model, torch.tensor(ids, device=trained.device),
        torch.tensor([len(sentence) for sentence in sentences], device=trained.device),
        beam=decoding.beam, longest=decoding.longest, end=decoding.end, penalty=decoding.penalty, topk=topk,
    )  # fmt: skip
    return [hypotheses[0] for hypotheses in found]


def write_down(trained: Trained, sentence: list[str], found: Hypothesis, replace_unknown: bool) -> str:
    """The words of a hypothesis, with spaces between."""
    written = []
    for word, place in zip(found.words, found.looked, strict=True):
        text = trained.words[word]
        written.append(sentence[place] if replace_unknown and text == UNK else text)
    return " ".join(written)
