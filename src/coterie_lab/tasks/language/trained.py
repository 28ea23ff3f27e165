"""A trained language model, which writes and scores text.

Shapes: V words, L words of a prompt or a line.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from coterie_lab.data.corpus import tokens_of
from coterie_lab.data.folder import UNK
from coterie_lab.heads import Material
from coterie_lab.heads.registry import Head
from coterie_lab.models.language import LanguageModel
from coterie_lab.tasks.language.settings import Settings
from coterie_lab.tasks.language.train import KIND, build
from coterie_lab.training import trained
from coterie_lab.training.run import Run

TRIES = 100  # draws of <unk> before the most probable other word is taken


@dataclass(frozen=True)
class Score:
    """The score of one line; its first word has no context, so it is read but not scored."""

    log_prob: float  # natural logarithm, of all words after the first
    words: int  # scored
    unknown: int  # of all its words


class Trained(trained.Trained[LanguageModel, Settings]):
    """A language model with its vocabulary and tokenizer."""

    kind, command, settings_class = KIND, "lm", Settings

    @staticmethod
    def build(run: Run, settings: Settings, words: list[str], counts: Tensor, material: Material) -> LanguageModel:
        return build(settings, counts, material)

    def tokens(self, text: str) -> list[str]:
        """Splits a text like the training text, with <eos> at ends of lines if that has it."""
        return tokens_of(text, self.prepared["lower"], self.prepared["eos"])

    @torch.no_grad()
    def generate(
        self,
        prompt: str,
        length: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> Iterator[str]:
        """Yields `length` words that follow the prompt; the same seed gives the same words. <unk> is never written."""
        unknown = self.id_of[UNK]
        ids = self.ids(self.tokens(prompt))
        if ids and all(word == unknown for word in ids):
            raise ValueError(
                f"no word of the prompt {prompt.strip()!r} is in the vocabulary of {len(self.words):,} words: use "
                "words of the training text (`coterie clusters RUN` shows some)"
            )
        generator = torch.Generator(self.device)
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(seed)
        head = cast(Head, self.model.head)
        # Without a prompt, the text follows an unknown word.
        words = torch.tensor([ids or [unknown]], device=self.device)  # (1, L)
        state = None
        for _ in range(length):
            hidden, state = self.model.hidden(words, state)
            last = hidden[:, -1]  # (1, D)
            for _ in range(TRIES if temperature else 0):
                # Drawing again until the word is not <unk> samples from all others.
                drawn = head.sample(last, temperature, top_k, top_p, generator)
                if int(drawn) != unknown:
                    break
            else:
                best = head.topk(last, 2)[1][0]
                drawn = best[best != unknown][:1]
            words = drawn.reshape(1, 1)
            yield self.words[int(drawn)]

    @torch.no_grad()
    def score(self, lines: Iterable[str]) -> Iterator[Score]:
        """Scores each line independently."""
        for line in lines:
            ended = line if line.endswith("\n") else f"{line}\n"
            ids = torch.tensor([self.ids(self.tokens(ended))], dtype=torch.int64, device=self.device)  # (1, L)
            unknown = int((ids == self.id_of[UNK]).sum())
            if ids.shape[1] < 2:
                yield Score(0.0, 0, unknown)
                continue
            hidden, _ = self.model.hidden(ids[:, :-1])
            found = self.model.head(hidden, ids[:, 1:]).output
            yield Score(float(found.double().sum()), ids.shape[1] - 1, unknown)
