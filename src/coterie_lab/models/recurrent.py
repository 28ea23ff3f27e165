"""A word-level LSTM language model: embedding, LSTM, and any head.

Shapes: B sequences, L steps, E embedding width, D hidden width, V words.
"""

from torch import Tensor, nn

from coterie_lab.models.embedding import Embedding
from coterie_lab.models.language import LanguageModel, State
from coterie_lab.models.lstm import LSTM


class RecurrentModel(LanguageModel):
    """An LSTM, whose state is carried from one batch into the next."""

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

    def carried(self, n_sequences: int) -> State:
        """Zeros, (layers, B, D) each."""
        shape = self.lstm.num_layers, n_sequences, self.lstm.hidden_size
        weight = self.embedding.weight
        return weight.new_zeros(shape), weight.new_zeros(shape)
