"""A small Transformer language model from scratch. Its text is the source of Python's standard library, word by word.

python examples/language_model.py            # a minute on two cores
python examples/language_model.py my.txt     # any other text
"""

import os
import re
import sys
from collections import Counter
from pathlib import Path

import torch
from torch import nn

from coterie import SelfOrganizedSoftmax

WIDTH, LENGTH, BATCH = 64, 32, 16


class LanguageModel(nn.Module):
    def __init__(self, counts: torch.Tensor) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(counts), WIDTH)
        self.place = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = SelfOrganizedSoftmax(WIDTH, len(counts), counts)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """(B, L) → hidden vectors (B, L, D)."""
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        hidden: torch.Tensor = self.body(self.embedding(words) + self.place[: words.shape[1]], mask, is_causal=True)
        return hidden


def main(text: str, updates: int = 600) -> None:
    torch.manual_seed(0)
    tokens = re.findall(r"\w+|[^\w\s]", text)
    counts = Counter(tokens)
    vocabulary = ["<unknown>", *(word for word, n in counts.most_common() if n > 2)]
    ids = {word: number for number, word in enumerate(vocabulary)}
    data = torch.tensor([ids.get(word, 0) for word in tokens])
    print(f"{len(data):,} tokens, {len(vocabulary):,} words")

    model = LanguageModel(data.bincount(minlength=len(vocabulary)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for update in range(1, updates + 1):
        starts = torch.randint(len(data) - LENGTH - 1, (BATCH, 1))
        words = data[starts + torch.arange(LENGTH + 1)]
        optimizer.zero_grad()
        model.head(model(words[:, :-1]), words[:, 1:]).loss.backward()
        optimizer.step()
        model.head.step()
        if update % 100 == 0:
            print(f"update {update}: perplexity {model.head.measures().perplexity:.1f}")

    partition = model.head.partition
    for word in ("self", "append", "ValueError"):
        if word in ids:
            cluster = int(partition.cluster_of[ids[word]])
            if cluster == partition.n_clusters:
                print(f"{word}: stands alone, because it is so frequent")
            else:
                print(f"{word}: with {' '.join(vocabulary[other] for other in partition.members(cluster)[:12])}")
    model.eval()
    words = [ids.get(word, 0) for word in ("def", "main", "(")]
    with torch.no_grad():
        for _ in range(40):
            hidden = model(torch.tensor([words[-LENGTH:]]))[:, -1]
            words.append(int(model.head.sample(hidden, temperature=0.7)))
    print(" ".join(vocabulary[word] for word in words))


if __name__ == "__main__":
    paths = [Path(path) for path in sys.argv[1:]] or sorted(Path(os.__file__).parent.glob("*.py"))
    main("\n".join(path.read_text(encoding="utf-8") for path in paths))
