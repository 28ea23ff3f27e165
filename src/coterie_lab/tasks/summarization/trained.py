"""A trained summarizer, which writes titles.

Shapes: V words, N sentences, S words of a sentence.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Self

import torch
from torch import Tensor

from coterie_lab.data import normalise
from coterie_lab.data.folder import EOS, UNK
from coterie_lab.heads import Material
from coterie_lab.models.beam import Hypothesis, TopK, search
from coterie_lab.models.summarizer import Summarizer
from coterie_lab.tasks.summarization.settings import Decoding, Settings
from coterie_lab.tasks.summarization.train import KIND, build
from coterie_lab.training import trained
from coterie_lab.training.run import Run

WINDOW = 32  # batches that are sorted by length together


class Trained(trained.Trained[Summarizer, Settings]):
    """A summarizer with its vocabulary and tokenizer."""

    kind, command, settings_class = KIND, "summarize", Settings

    @staticmethod
    def build(run: Run, settings: Settings, words: list[str], counts: Tensor, material: Material) -> Summarizer:
        # Clusters that it was given stay fixed unless its options say otherwise; they are saved in the model, too.
        given = material.partition if run.partition.exists() else None
        if given is not None:
            material = replace(material, partition=None)
        return build(settings, counts, words.index(EOS), given, material)

    def of_tokens(self) -> Self:
        """The same summarizer for sentences that are already split into words, as prepared text is."""
        return replace(self, prepared={**self.prepared, "raw": False})

    def split(self, line: str) -> list[str]:
        """Splits a sentence like the training data."""
        return normalise.article(line) if self.prepared["raw"] else normalise.ready(line)

    def tokens(self, text: str) -> list[str]:
        """The words of a sentence that are read."""
        return self.split(text)[: self.longest]

    @property
    def longest(self) -> int:
        """The most words of a sentence that are read."""
        most: int = self.prepared["longest_article"]
        return most

    def summarize(self, lines: Iterable[str], decoding: Decoding, topk: TopK | None = None) -> Iterator[str]:
        """The titles of lines, in their order; an empty title for an empty line."""
        remaining = iter(lines)
        while window := list(islice(remaining, WINDOW * decoding.batch)):
            sentences = [self.tokens(line) for line in window]
            titles = [""] * len(window)
            # Sentences of similar length share a batch, which needs little padding.
            order = sorted((n for n, sentence in enumerate(sentences) if sentence), key=lambda n: len(sentences[n]))
            for begin in range(0, len(order), decoding.batch):
                chosen = order[begin : begin + decoding.batch]
                best = self._search([sentences[n] for n in chosen], decoding, topk)
                for n, found in zip(chosen, best, strict=True):
                    titles[n] = self.write_down(sentences[n], found, decoding.replace_unknown)
            yield from titles

    def _search(self, sentences: Sequence[list[str]], decoding: Decoding, topk: TopK | None) -> list[Hypothesis]:
        """The best hypothesis of each of N sentences."""
        lengths = [len(sentence) for sentence in sentences]
        ids = [self.ids(sentence) + [0] * (max(lengths) - len(sentence)) for sentence in sentences]
        found = search(
            self.model, torch.tensor(ids, device=self.device), torch.tensor(lengths, device=self.device),
            beam=decoding.beam, longest=decoding.longest, end=decoding.end, penalty=decoding.penalty, topk=topk,
        )  # fmt: skip
        return [hypotheses[0] for hypotheses in found]

    def write_down(self, sentence: list[str], found: Hypothesis, replace_unknown: bool) -> str:
        """The words of a hypothesis, joined by spaces."""
        written = []
        for word, place in zip(found.words, found.looked, strict=True):
            text = self.words[word]
            written.append(sentence[place] if replace_unknown and text == UNK else text)
        return " ".join(written)
