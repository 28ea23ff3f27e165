"""A word-level Transformer language model, as small as nanoGPT's: pre-norm, causal attention, and any head.

Linear maps and norms have no biases, as in nanoGPT's training. Positions are learned vectors, or rotations of queries
and keys, after which a product of two depends on their distance alone (Su et al., arXiv 2104.09864).

Shapes: B sequences, L steps, D width, H attention heads, d = D / H, V words.
"""

import math
from collections.abc import Callable
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.softmax import SelfOrganizedSoftmax
from coterie_lab.models.embedding import Embedding
from coterie_lab.models.language import LanguageModel, State

SPREAD = 0.02  # the standard deviation of initial weights


class Rotary(nn.Module):
    """Rotates each pair of values by an angle that grows with the position."""

    turns: Tensor  # (2, L, d / 2): cosine and sine

    def __init__(self, width: int, window: int) -> None:
        super().__init__()
        slower = 10_000.0 ** (-torch.arange(0, width, 2) / width)  # (d / 2,)
        angles = torch.arange(window)[:, None] * slower  # (L, d / 2)
        self.register_buffer("turns", torch.stack((angles.cos(), angles.sin())), persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """(..., L, d) → (..., L, d)."""
        cosine, sine = self.turns[:, : vectors.shape[-2]]
        first, second = vectors.float().chunk(2, -1)
        turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)
        return turned.to(vectors.dtype)


class Attention(nn.Module):
    """Each position looks at itself and those before it."""

    def __init__(self, width: int, heads: int, window: int, dropout: float, rotary: bool) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.look = nn.Linear(width, 3 * width, bias=False)  # queries, keys and values
        self.out = nn.Linear(width, width, bias=False)
        self.rotary = Rotary(width // heads, window) if rotary else None

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) → (B, L, D)."""
        query, key, value = self.look(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (B, H, L, d) each
        if self.rotary is not None:
            query, key = self.rotary(query), self.rotary(key)
        dropout = self.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        mixed: Tensor = self.out(seen.transpose(1, 2).flatten(-2))
        return mixed


class Block(nn.Module):
    """Attention, then two linear maps with GELU between; each adds to what goes through."""

    def __init__(self, width: int, heads: int, window: int, dropout: float, rotary: bool) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.attention = Attention(width, heads, window, dropout, rotary)
        self.inner_norm = nn.LayerNorm(width, bias=False)
        self.inner = nn.Linear(width, 4 * width, bias=False)
        self.out = nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) → (B, L, D)."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        inner = F.gelu(self.inner(self.inner_norm(x)))
        changed: Tensor = x + self.dropout(self.out(inner))
        return changed


class Body(nn.Module):
    """All between the embedding and the head."""

    def __init__(self, width: int, layers: int, heads: int, window: int, dropout: float, rotary: bool) -> None:
        super().__init__()
        self.places = None if rotary else nn.Parameter(torch.empty(window, width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, window, dropout, rotary) for _ in range(layers)))
        self.norm = nn.LayerNorm(width, bias=False)

    def forward(self, embedded: Tensor) -> Tensor:
        """(B, L, D) → (B, L, D)."""
        if self.places is not None:
            embedded = embedded + self.places[: embedded.shape[1]]
        output: Tensor = self.norm(self.blocks(self.dropout(embedded)))
        return output


class Transformer(LanguageModel):
    """A Transformer, which reads at most `window` words at a time."""

    def __init__(
        self, n_words: int, width: int, head: nn.Module, layers: int, heads: int, window: int, dropout: float = 0.0,
        rotary: bool = False, compiled: bool = False,
    ) -> None:  # fmt: skip
        """`rotary`: rotary positions, not learned ones; `compiled`: on a GPU, train through `torch.compile`."""
        super().__init__()
        self.window = window
        self.embedding = Embedding(n_words, width)
        self.body = Body(width, layers, heads, window, dropout, rotary)
        self.head = head
        self.compile_body = compiled

    def hidden(self, words: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """(B, L) → (B, L, D). The state is the words before, of which each word sees as many as fit the window."""
        before = state[0] if state else words[:, :0]
        parts = []
        for part in words.split(self.window, 1):
            length = part.shape[1]
            read = torch.cat((before, part), 1)[:, -self.window :]
            parts.append(self.vectors(read)[:, -length:])
            before = read
        return torch.cat(parts, 1), (before,)

    def vectors(self, words: Tensor) -> Tensor:
        """(B, L) → (B, L, D), L at most the window."""
        embedded = self.embedding(words)
        if self.compile_body and self.training and embedded.is_cuda:
            return self.compiled(embedded)  # not in evaluation, whose shapes would each be compiled
        vectors: Tensor = self.body(embedded)
        return vectors

    @cached_property
    def compiled(self) -> Callable[[Tensor], Tensor]:
        """The body through `torch.compile`."""
        return torch.compile(self.body.forward, dynamic=False)

    def forward(self, words: Tensor, target: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """The loss of the targets (B, L) after the words (B, L), L at most the window; nothing is carried on."""
        loss: Tensor = self.head(self.vectors(words), target).loss
        return loss, ()

    @torch.no_grad()
    def start(self) -> None:
        """Draws the initial weights as GPT-2 does; of a head only the vectors that go in too."""
        head, shared = self.head, []
        if isinstance(head, SelfOrganizedSoftmax) and head.weight is self.embedding.weight:
            shared.append(head.cluster_weight)
        for weight in (self.embedding.weight, *shared, *self.body.parameters()):
            if weight.ndim > 1:
                nn.init.normal_(weight, std=SPREAD)
        for block in self.body.blocks:
            assert isinstance(block, Block)
            for last in (block.attention.out, block.out):  # before they are added up, twice a layer
                last.weight /= math.sqrt(2 * len(self.body.blocks))
