"""A sentence in, its title out: an LSTM reads, an LSTM writes and looks back at what was read, and any head.

The title is known while training, so the writing LSTM runs over all of it at once, and the attention of all its steps
is one product (Luong et al., "general", without input feeding, which would need a loop over steps). Nothing depends on
what fills a batch up: sentences are filled up at their end, their last state is the one at their last word, and the
attention sees their words alone.

Shapes: B sentences, S words of a sentence, L words of a title, E embedding width, D hidden width, M width of what is
remembered of a word: the state after it, D, or 2D when the sentence is read from both ends, and perhaps its vector, E.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coterie.layers.embedding import Embedding
from coterie.layers.lstm import LSTM, State
from coterie.lm.data import IGNORED


@dataclass(frozen=True)
class Memory:
    """What was read of some sentences."""

    states: Tensor  # (B, S, M)
    keys: Tensor  # (B, S, D) the states as the attention compares them
    padding: Tensor  # (B, S) where there is no word

    def select(self, rows: Tensor) -> "Memory":
        """Of some of the sentences."""
        return Memory(self.states[rows], self.keys[rows], self.padding[rows])


class Summarizer(nn.Module):
    """Hidden vectors for every position of a title; the head turns them into words."""

    def __init__(
        self, n_words: int, eos: int, embedding: int, hidden: int, head: nn.Module,
        bidirectional: bool = False, look_at_words: bool = False, dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.eos = eos
        self.embedding = Embedding(n_words, embedding)  # of both sides: they share their words
        self.reader = LSTM(embedding, hidden)
        self.backward_reader = LSTM(embedding, hidden) if bidirectional else None
        read = 2 * hidden if bidirectional else hidden
        self.bridge = nn.Linear(read, 2 * hidden)  # where the writer starts from
        self.writer = LSTM(embedding, hidden)
        self.look_at_words = look_at_words
        remembered = read + embedding if look_at_words else read
        self.key = nn.Linear(remembered, hidden, bias=False)
        self.combine = nn.Linear(remembered + hidden, hidden)
        self.dropout = nn.Dropout(dropout)
        self.head = head

    def embed(self, words: Tensor) -> Tensor:
        """(B, L) → (B, L, E)."""
        vectors: Tensor = self.dropout(self.embedding(words))
        return vectors

    def read(self, embedded: Tensor, length: Tensor) -> tuple[Memory, State]:
        """Sentences' words (B, S, E) and (B,) how many of them are real → what was read, and the state to write
        from."""
        places = torch.arange(embedded.shape[1], device=embedded.device)  # (S,)
        last = (length - 1)[:, None]  # (B, 1)
        states, _ = self.reader(embedded)
        final = _at(states, last)  # (B, 1, D)
        if self.backward_reader is not None:
            # From each sentence's last word to its first; what fills up stays behind.
            turned = torch.where(places <= last, last - places, places)  # (B, S)
            back, _ = self.backward_reader(_at(embedded, turned))
            final = torch.cat((final, _at(back, last)), -1)
            states = torch.cat((states, _at(back, turned)), -1)
        if self.look_at_words:
            # What goes in is, tied, what the head compares with: a word that is looked at can be copied.
            states = torch.cat((states, embedded), -1)
        start = torch.tanh(self.bridge(final)).transpose(0, 1)  # (1, B, 2D)
        hidden, cell = start.float().chunk(2, -1)
        return Memory(states, self.key(states), places > last), (hidden.contiguous(), cell.contiguous())

    def write(self, embedded: Tensor, state: State) -> tuple[Tensor, State]:
        """The words so far (B, L, E) → the writer's output after each (B, L, D), and its state after the last."""
        output, state = self.writer(embedded, state)
        return output, state

    def look(self, output: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """Looks back at the sentences: (B, L, D) → what the head is given (B, L, D), and where it looked (B, L, S)."""
        score = output @ memory.keys.transpose(1, 2)  # (B, L, S)
        attention = score.float().masked_fill(memory.padding[:, None], -torch.inf).softmax(-1)
        seen = attention.to(memory.states.dtype) @ memory.states  # (B, L, M)
        hidden = torch.tanh(self.combine(torch.cat((seen, output), -1)))
        return self.dropout(hidden), attention

    def hidden(self, article: Tensor, length: Tensor, title: Tensor) -> Tensor:
        """What the head is given before each word of the titles (B, L): (B, L, D)."""
        start = title.new_full((title.shape[0], 1), self.eos)
        words = torch.cat((start, title[:, :-1]), 1)
        words = torch.where(words == IGNORED, self.eos, words)
        # One look-up for both sides: each would have a gradient as large as the vocabulary.
        sentences, titles = self.embed(torch.cat((article, words), 1)).split((article.shape[1], words.shape[1]), 1)
        memory, state = self.read(sentences, length)
        output, _ = self.write(titles, state)
        hidden, _ = self.look(output, memory)
        return hidden

    def forward(self, article: Tensor, length: Tensor, title: Tensor) -> Tensor:
        """The mean loss of the titles' words: (B, S), (B,), (B, L) → ()."""
        loss: Tensor = self.head(self.hidden(article, length, title), title).loss
        return loss


def _at(rows: Tensor, places: Tensor) -> Tensor:
    """Vectors at places of each row: (B, S, W), (B, P) → (B, P, W)."""
    return rows.gather(1, places[..., None].expand(-1, -1, rows.shape[-1]))
