"""A summarizer: an LSTM reads a sentence, another writes its title with attention to the first, and any head.

In training the title is known, so the writing LSTM runs over all of it at once, and the attention of all its steps is
one product (Luong et al., "general"). With their input feeding, the head's input for a word is fed into the next step,
which needs a loop over words also in training. Padding does not change results: sentences are padded at the end, their
last state is that of their last word, and the attention is masked.

Shapes: B sentences, S words of a sentence, H titles of each written side by side, L words of a title, E embedding
width, D hidden width, M width of the memory of a word: the state after it, D, or 2D when the sentence is read
from both ends, and perhaps its vector, E.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from coterie_lab.data.streams import IGNORED
from coterie_lab.models.embedding import Embedding
from coterie_lab.models.lstm import LSTM
from coterie_lab.models.word_model import WordModel


@dataclass(frozen=True)
class Memory:
    """The encoded sentences."""

    states: Tensor  # (B, S, M)
    keys: Tensor  # (B, S, D) the states as the attention compares them
    padding: Tensor  # (B, S) whether a place is padding

    def select(self, rows: Tensor) -> "Memory":
        """The memory of some of the sentences."""
        return Memory(self.states[rows], self.keys[rows], self.padding[rows])


class Writing(NamedTuple):
    """The state of unfinished titles: all that the next word depends on."""

    state: Tensor  # (1, B · H, D) the writing LSTM's
    cell: Tensor  # (1, B · H, D)
    given: Tensor  # (1, B · H, D) what the head was given for the last word; zeros before the first


class Summarizer(WordModel):
    """Computes hidden vectors for every position of a title, from which the head predicts words."""

    def __init__(
        self, n_words: int, eos: int, embedding: int, hidden: int, head: nn.Module,
        bidirectional: bool = False, look_at_words: bool = False, dropout: float = 0.0,
        input_feeding: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.eos = eos
        self.embedding = Embedding(n_words, embedding)  # of both sides, which share their vocabulary
        self.reader = LSTM(embedding, hidden)
        self.backward_reader = LSTM(embedding, hidden) if bidirectional else None
        read = 2 * hidden if bidirectional else hidden
        self.bridge = nn.Linear(read, 2 * hidden)  # the writer's initial state
        self.input_feeding = input_feeding
        self.writer = LSTM(embedding + hidden if input_feeding else embedding, hidden)
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

    def read(self, embedded: Tensor, length: Tensor) -> tuple[Memory, Writing]:
        """Encodes sentences (B, S, E) of lengths (B,): returns the memory, and the state of an empty title for each."""
        places = torch.arange(embedded.shape[1], device=embedded.device)  # (S,)
        last = (length - 1)[:, None]  # (B, 1)
        states, _ = self.reader(embedded)
        final = _at(states, last)  # (B, 1, D)
        if self.backward_reader is not None:
            # Reverse each sentence; padding stays at the end.
            turned = torch.where(places <= last, last - places, places)  # (B, S)
            back, _ = self.backward_reader(_at(embedded, turned))
            final = torch.cat((final, _at(back, last)), -1)
            states = torch.cat((states, _at(back, turned)), -1)
        if self.look_at_words:
            # With tied weights these are also the head's word vectors, so the attention can copy a word.
            states = torch.cat((states, embedded), -1)
        start = torch.tanh(self.bridge(final)).transpose(0, 1)  # (1, B, 2D)
        state, cell = start.float().chunk(2, -1)
        nothing = torch.zeros_like(start.chunk(2, -1)[0])  # in the dtype of what the head is given
        return Memory(states, self.key(states), places > last), Writing(state.contiguous(), cell.contiguous(), nothing)

    def write(self, embedded: Tensor, writing: Writing, memory: Memory) -> tuple[Tensor, Tensor]:
        """A title of each sentence, its words so far (B, L, E) → what the head is given after each (B, L, D), and where
        it looked (B, L, S)."""
        if not self.input_feeding:
            output, _ = self.writer(embedded, (writing.state, writing.cell))
            return self.look(output, memory)
        hidden, attention = [], []
        for word in embedded.split(1, 1):  # (B, 1, E)
            given, looked, writing = self.step(word, writing, memory)
            hidden.append(given)
            attention.append(looked)
        return torch.cat(hidden, 1), torch.cat(attention, 1)

    def step(self, embedded: Tensor, writing: Writing, memory: Memory) -> tuple[Tensor, Tensor, Writing]:
        """The last words of H titles of each sentence (B, H, E) → what the head is given (B, H, D), where it looked
        (B, H, S), and how far the titles have come."""
        words = embedded.flatten(0, 1)[:, None]  # (B · H, 1, E)
        if self.input_feeding:
            words = torch.cat((words, writing.given.transpose(0, 1)), -1)  # (B · H, 1, E + D)
        output, (state, cell) = self.writer(words, (writing.state, writing.cell))
        hidden, attention = self.look(output.view(*embedded.shape[:2], -1), memory)
        return hidden, attention, Writing(state, cell, hidden.flatten(0, 1)[None])

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
        # One look-up for both sides, as each has a gradient as large as the vocabulary.
        sentences, titles = self.embed(torch.cat((article, words), 1)).split((article.shape[1], words.shape[1]), 1)
        memory, writing = self.read(sentences, length)
        hidden, _ = self.write(titles, writing, memory)
        return hidden

    def forward(self, article: Tensor, length: Tensor, title: Tensor) -> Tensor:
        """The mean loss of the titles' words: (B, S), (B,), (B, L) → ()."""
        loss: Tensor = self.head(self.hidden(article, length, title), title).loss
        return loss


def _at(rows: Tensor, places: Tensor) -> Tensor:
    """Vectors at places of each row: (B, S, W), (B, P) → (B, P, W)."""
    return rows.gather(1, places[..., None].expand(-1, -1, rows.shape[-1]))
