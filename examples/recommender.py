"""A next-item recommender: a GRU over sessions, 20,000 items whose popularity nobody knows beforehand.

    python examples/recommender.py

The sessions are made up: a visitor stays in one of 100 departments and clicks on popular items more often.
"""

import torch
from torch import nn

from coterie import SelfOrganizedSoftmax

ITEMS, DEPARTMENTS, WIDTH = 20_000, 100, 64


def sessions(n: int, length: int = 10) -> torch.Tensor:
    """Items of n sessions, (n, length)."""
    department = torch.randint(DEPARTMENTS, (n, 1))
    rank = (torch.rand(n, length).pow(4) * (ITEMS // DEPARTMENTS)).long()
    return rank * DEPARTMENTS + department


def main(updates: int = 600) -> None:
    torch.manual_seed(0)
    embedding = nn.Embedding(ITEMS, WIDTH)
    body = nn.GRU(WIDTH, WIDTH, batch_first=True)
    # counts=None, the default: the head counts the targets it sees.
    head = SelfOrganizedSoftmax(WIDTH, ITEMS)
    model = nn.ModuleList([embedding, body, head])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    for update in range(1, updates + 1):
        items = sessions(64)
        hidden, _ = body(embedding(items[:, :-1]))
        loss = head(hidden, items[:, 1:]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        head.step()
        if update % 100 == 0:
            print(f"update {update}: loss {loss.item():.3f}")

    model.eval()
    items = sessions(500)
    with torch.no_grad():
        hidden, _ = body(embedding(items[:, :-1]))
        _, best = head.topk(hidden[:, -1], 20)  # exact; most of the items are not looked at
    recall = (best == items[:, -1:]).any(1).float().mean().item()
    print(f"recall@20: {recall:.1%} (by chance: {20 / ITEMS:.1%})")


if __name__ == "__main__":
    main()
