"""A word-level LSTM language model: embedding, LSTM, and any head.

Shapes: B sequences, L steps, E embedding width, D hidden width, V words.
"""

import torch
from torch import Tensor, nn

from coterie_lab.models.embedding import Embedding
from coterie_lab.models.lstm import LSTM, State
from coterie_lab.models.word_model import WordModel


class LanguageModel(WordModel):
    """Computes hidden vectors for every position, from which the head predicts words."""

    def __init__(
        self, n_words: int, embedding: int, hidden: int, head: nn.Module, layers: int = 1, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embedding = Embedding(n_words, embedding)
        self.lstm = LSTM(embedding, hidden, layers, dropout)
        self.dropout = nn.Dropout(dropout)
        self.head = head

    def hidden(self, words: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """(B, L) → (B, L, D), and the state after them."""
        embedded = self.dropout(self.embedding(words))
        output, state = self.lstm(embedded, state)
        return self.dropout(output), state

    def forward(self, words: Tensor, target: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """The loss of the targets (B, L) after the words (B, L), and the state, cut from the graph."""
        hidden, state = self.hidden(words, state)
        loss: Tensor = self.head(hidden, target).loss
        return loss, (state[0].detach(), state[1].detach())


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
