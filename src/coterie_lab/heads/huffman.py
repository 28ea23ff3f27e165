"""A binary tree in which frequent words are near the root: O(log V) a token (Morin & Bengio 2005; Mikolov et al. 2013).

Shapes: T tokens, D width, V words, L the longest path from the root to a word.
"""

import heapq
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.checks import check_counts, check_whole
from coterie.softmax import HeadOutput
from coterie_lab.heads.dense import DenseAnswers, flat, mean_loss, precise
from coterie_lab.heads.registry import register


def huffman_paths(counts: Tensor) -> tuple[Tensor, Tensor]:
    """The inner nodes above each word, root first, and the turns there (1, -1): both (V, L), 0 after the end.

    `counts` (V,) whole numbers. Nodes are numbered as they were joined, the rarest words first; equal ones in order.
    """
    n_words = counts.numel()
    parent, way = [0] * (2 * n_words - 1), [0] * (2 * n_words - 1)  # words, then nodes
    rarest = list(zip(counts.tolist(), range(n_words), strict=True))
    heapq.heapify(rarest)
    for joined in range(n_words - 1):
        total = 0
        for side in (1, -1):
            mass, child = heapq.heappop(rarest)
            parent[child], way[child], total = joined, side, total + mass
        heapq.heappush(rarest, (total, n_words + joined))
    parents, ways = torch.tensor(parent), torch.tensor(way)
    at, paths, turns = torch.arange(n_words), [], []
    root = 2 * n_words - 2
    while bool((above := at != root).any()):  # one step up for all words at once
        paths.append(torch.where(above, parents[at], 0))
        turns.append(torch.where(above, ways[at], 0))
        at = torch.where(above, parents[at] + n_words, root)
    upward, turning = torch.stack(paths, 1), torch.stack(turns, 1)  # (V, L) from the word to the root
    from_root = (turning != 0).sum(1, keepdim=True) - 1 - torch.arange(upward.shape[1])  # (V, L) below 0: ended
    inside, flip = from_root >= 0, from_root.clamp(min=0)
    return torch.where(inside, upward.gather(1, flip), 0), torch.where(inside, turning.gather(1, flip), 0)


@register("hsm-huffman")
class HuffmanSoftmax(DenseAnswers, nn.Module):
    """P(w|h) is the product of the probabilities of the turns on the path to w; it has V - 1 vectors in all."""

    path: Tensor  # (V, L) the nodes above each word
    turn: Tensor  # (V, L) 1 or -1; 0 where the path has ended

    def __init__(
        self, in_features: int, n_classes: int, counts: Tensor | Sequence[int], ignore_index: int = -100
    ) -> None:
        """`counts` (V,): the more often a word occurs, the shorter its path."""
        super().__init__()
        if n_classes < 2:
            raise ValueError(f"n_classes must be at least 2; got {n_classes}")
        check_whole("ignore_index", ignore_index)
        self.in_features, self.n_classes, self.ignore_index = in_features, n_classes, ignore_index
        path, turn = huffman_paths(check_counts(counts, n_classes))
        self.register_buffer("path", path.to(torch.int32))
        self.register_buffer("turn", turn.to(torch.int8))
        bound = in_features**-0.5
        self.nodes = nn.Parameter(torch.empty(n_classes - 1, in_features).uniform_(-bound, bound))
        self.node_bias = nn.Parameter(torch.zeros(n_classes - 1))

    def forward(self, hidden: Tensor, target: Tensor) -> HeadOutput:
        """log P(target) and the mean loss. `hidden` (..., D), `target` (...)."""
        rows, words, used = flat(hidden, target, self.ignore_index)
        path, turn = F.embedding(words, self.path), F.embedding(words, self.turn)  # (T, L)
        nodes = F.embedding(path, self.nodes)  # (T, L, D)
        score = precise(torch.einsum("td,tld->tl", rows, nodes.to(rows.dtype)))
        score = score + F.embedding(path, self.node_bias[:, None]).squeeze(-1)
        output = (F.logsigmoid(score * turn) * turn.abs()).sum(-1)
        return mean_loss(torch.where(used, output, 0.0), target, self.ignore_index)

    def log_prob(self, hidden: Tensor) -> Tensor:
        """(..., D) → (..., V)."""
        score = precise(F.linear(hidden, self.nodes, self.node_bias))  # (..., V - 1)
        total = score.new_zeros(*score.shape[:-1], self.n_classes)
        for path, turn in zip(self.path.T, self.turn.T, strict=True):  # a step from the root for all words at once
            total = total + F.logsigmoid(score[..., path.long()] * turn) * turn.abs()
        return total
