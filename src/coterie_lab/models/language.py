"""What language models have in common: hidden vectors for every position, from which any head predicts words.

Shapes: B sequences, L steps, D hidden width.
"""

import torch
from torch import Tensor

from coterie_lab.models.word_model import WordModel

State = tuple[Tensor, ...]  # what a model keeps of the words before; () or None: nothing came before


class LanguageModel(WordModel):
    """A language model; a subclass computes the hidden vectors."""

    def hidden(self, words: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """(B, L) → (B, L, D), and the state after them."""
        raise NotImplementedError

    def carried(self, n_sequences: int) -> State:
        """What training carries from one batch into the next, before the first."""
        return ()

    def forward(self, words: Tensor, target: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """The loss of the targets (B, L) after the words (B, L), and what to carry on, cut from the graph."""
        hidden, state = self.hidden(words, state)
        loss: Tensor = self.head(hidden, target).loss
        return loss, tuple(part.detach() for part in state)


def batches(text: Tensor, n_sequences: int, length: int) -> list[tuple[Tensor, Tensor]]:
    """Splits a text into `n_sequences` parallel streams of L steps: yields words and targets, each (B, L)."""
    usable = (text.numel() - 1) // n_sequences * n_sequences
    words = text[:usable].view(n_sequences, -1)
    targets = text[1 : usable + 1].view(n_sequences, -1)
    return list(zip(words.split(length, 1), targets.split(length, 1), strict=True))


@torch.no_grad()
def mean_loss(model: LanguageModel, text: Tensor, n_sequences: int, length: int) -> float:
    """The mean negative log-probability of a text, in nats per word."""
    model.eval()
    state, total, n = None, 0.0, 0
    for words, target in batches(text, n_sequences, length):
        loss, state = model(words, target, state)
        total, n = total + float(loss) * target.numel(), n + target.numel()
    model.train()
    return total / n
