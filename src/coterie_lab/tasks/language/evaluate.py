"""Evaluates a language model: perplexity, its two factors, and perplexity by frequency of the words.

Shapes: V words, B sequences, L steps.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from coterie.metrics import perplexity
from coterie_lab.data.streams import IGNORED, Ids, whole
from coterie_lab.models.language import LanguageModel, State
from coterie_lab.models.transformer import Transformer

# Few streams, since each starts without context. Long steps, since without gradients they need little memory.
SEQUENCES, LENGTH = 16, 64
BANDS = (100, 1_000, 10_000)  # ranks by frequency at which a band ends


@dataclass(frozen=True)
class Band:
    """A band of words of similar frequency."""

    words: str  # which ranks
    share: float  # of the text
    perplexity: float


@dataclass(frozen=True)
class Evaluation:
    """The results over every word of a text but the first, which has no context."""

    words: int
    loss: float  # nats a word
    perplexity: float
    bands: list[Band]
    cluster_perplexity: float | None = None  # of a head with clusters
    in_cluster_perplexity: float | None = None


def evaluate(
    model: LanguageModel, ids: Ids, counts: Tensor, sequences: int = SEQUENCES, length: int | None = None
) -> Evaluation:
    """Evaluates the model on a text; `counts` (V,) of the training text.

    `length`: words to read at a time; by default 64, or a Transformer's whole window, which has no words before it.
    """
    length = length or (model.window if isinstance(model, Transformer) else LENGTH)
    device = model.embedding.weight.device
    band_of, names = frequency_bands(counts)
    # The extra element is for ignored targets.
    sums = torch.zeros(2, len(names) + 1, dtype=torch.float64, device=device)  # log P and words by band
    band_of = torch.cat((band_of, torch.tensor([len(names)]))).to(device)
    state: State | None = None
    with model.evaluating() as factors:
        for words, target in whole(ids, sequences, length):
            words, target = words.to(device, non_blocking=True), target.to(device, non_blocking=True)
            hidden, state = model.hidden(words, state)
            log_prob = model.head(hidden, target).output.reshape(-1).double()
            band = band_of[torch.where(target == IGNORED, counts.numel(), target).reshape(-1)]
            sums.index_add_(1, band, torch.stack((log_prob, torch.ones_like(log_prob))))
    log_probs, n_words = (part[:-1].tolist() for part in sums)
    total = sum(n_words)
    loss = -sum(log_probs) / total
    bands = [
        Band(name, n / total, perplexity(-log_prob / n))
        for name, log_prob, n in zip(names, log_probs, n_words, strict=True)
        if n
    ]
    return Evaluation(int(total), loss, perplexity(loss), bands, **factors)


def frequency_bands(counts: Tensor) -> tuple[Tensor, list[str]]:
    """The band of each word, (V,), by its rank in the training text, and the names of the bands."""
    ends = [end for end in BANDS if end < counts.numel()]
    rank = torch.empty_like(counts)
    rank[counts.argsort(descending=True, stable=True)] = torch.arange(counts.numel())
    bounds = [0, *ends, counts.numel()]
    names = [f"{low + 1:,} to {high:,}" for low, high in pairwise(bounds)]
    return torch.bucketize(rank, torch.tensor(ends, dtype=torch.int64), right=True), names


def unigram_perplexity(counts: Tensor, ids: Ids) -> float:
    """The perplexity of a text under the unigram frequencies `counts` (V,) + 1."""
    log_prob = (counts.double() + 1).log() - math.log(float(counts.sum()) + counts.numel())
    return perplexity(-float(log_prob[torch.from_numpy(ids.astype("int64"))].mean()))
