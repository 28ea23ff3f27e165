"""What a summarizer is worth before it writes: the perplexity of the titles given their sentences."""

import torch

from coterie.metrics import perplexity
from coterie.softmax import SelfOrganizedSoftmax
from coterie_lab.data.batches import Batches
from coterie_lab.models.summarizer import Summarizer


@torch.no_grad()
def evaluate(model: Summarizer, batches: Batches) -> dict[str, float]:
    """Over every word of the titles, their ends among them: loss and perplexity, and of the clusters if it has some."""
    device = model.embedding.weight.device
    training = model.training
    model.eval()
    head = model.head
    if isinstance(head, SelfOrganizedSoftmax):
        head.measures()  # forget what came before
    total = torch.zeros((), dtype=torch.float64, device=device)
    words = 0
    for batch in batches.in_order():
        words += int((batch.title >= 0).sum())  # still on the CPU
        batch = batch.to(device)
        hidden = model.hidden(*batch.parts())
        total += head(hidden, batch.title).output.double().sum()  # 0 where there is no word
    measures = head.measures() if isinstance(head, SelfOrganizedSoftmax) else None
    model.train(training)
    loss = -float(total) / words
    found = {"loss": loss, "perplexity": perplexity(loss)}
    if measures is not None:
        found |= {
            "cluster_perplexity": measures.cluster_perplexity,
            "in_cluster_perplexity": measures.in_cluster_perplexity,
        }
    return found
