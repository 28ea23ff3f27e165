"""Moving from torch's adaptive softmax: the same loop, one line and a call of `step()` apart.

    python examples/from_adaptive.py

Both learn to guess the next word of Python's standard library from the word before it.
"""

import os
import re
import time
from collections import Counter
from pathlib import Path

import torch
from torch import nn

from coterie import SelfOrganizedSoftmax

WIDTH, BATCH = 64, 512


def train(head: nn.Module, data: torch.Tensor, n_words: int, updates: int) -> None:
    torch.manual_seed(0)
    embedding = nn.Embedding(n_words, WIDTH)
    optimizer = torch.optim.Adam([*embedding.parameters(), *head.parameters()], lr=5e-3)
    began, losses = time.perf_counter(), []
    for _ in range(updates):
        place = torch.randint(len(data) - 1, (BATCH,))
        loss = head(embedding(data[place]), data[place + 1]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if isinstance(head, SelfOrganizedSoftmax):
            head.step()
        losses.append(loss.item())
    perplexity = torch.tensor(losses[-50:]).mean().exp()
    print(f"{type(head).__name__}: perplexity {perplexity:.0f}, {time.perf_counter() - began:.1f} seconds")


def main(text: str, updates: int = 250) -> None:
    tokens = re.findall(r"\w+|[^\w\s]", text)
    # Sorted by frequency, as the adaptive softmax needs it; the layer takes any order.
    ids = {word: number for number, (word, n) in enumerate(Counter(tokens).most_common()) if n > 2}
    data = torch.tensor([ids[word] for word in tokens if word in ids])
    n_words = len(ids)

    before = nn.AdaptiveLogSoftmaxWithLoss(WIDTH, n_words, cutoffs=[n_words // 10, n_words // 3])
    train(before, data, n_words, updates)

    after = SelfOrganizedSoftmax(WIDTH, n_words, data.bincount())
    train(after, data, n_words, updates)


if __name__ == "__main__":
    main("\n".join(path.read_text(encoding="utf-8") for path in sorted(Path(os.__file__).parent.glob("*.py"))))
