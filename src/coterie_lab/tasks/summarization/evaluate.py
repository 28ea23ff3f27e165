"""What a summarizer is worth before it writes: the perplexity of the titles given their sentences."""

import torch

from coterie.metrics import perplexity
from coterie_lab.data.batches import Batches
from coterie_lab.models.summarizer import Summarizer


def evaluate(model: Summarizer, batches: Batches) -> dict[str, float]:
    """Over every word of the titles, their ends among them: loss and perplexity, and of the clusters if it has some."""
    device = model.embedding.weight.device
    total = torch.zeros((), dtype=torch.float64, device=device)
    words = 0
    with model.evaluating() as factors:
        for batch in batches.in_order():
            words += int((batch.title >= 0).sum())  # still on the CPU
            batch = batch.to(device)
            hidden = model.hidden(*batch.parts())
            total += model.head(hidden, batch.title).output.double().sum()  # 0 where there is no word
    loss = -float(total) / words
    return {"loss": loss, "perplexity": perplexity(loss), **factors}
