"""Losses from a few sampled words: importance sampling and noise-contrastive estimation; inference uses all words.

Importance sampling (Bengio & Senécal; Jean et al.) estimates the sum over all words. Noise contrast (Gutmann &
Hyvärinen; Mnih & Teh) learns which words are the text's and which were drawn.

Shapes: T tokens, D width, V words, K draws.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.buffers import ExactBuffers
from coterie.checks import check_whole
from coterie.softmax import HeadOutput
from coterie_lab.heads.dense import flat, mean_loss, precise
from coterie_lab.heads.full import Biases, FullSoftmax
from coterie_lab.heads.proposals import Draw, Kind, Proposal
from coterie_lab.heads.registry import register

SAMPLES = 8192


def sampled_log_prob(target_logit: Tensor, logits: Tensor, log_q: Tensor, hit: Tensor) -> Tensor:
    """log P(target) as estimated from the samples, (T,).

    Σ_w exp(s_w) is taken as exp(s_target) + Σ_k exp(s_k) / (K q_k) over the draws that are not the target: its mean is
    exact. `target_logit` (T,), `logits` (T, K), `log_q` (K,) of a draw, `hit` (T, K) where a draw is the target.
    """
    corrected = logits - (log_q + math.log(log_q.numel())).to(logits.dtype)
    others = corrected.masked_fill(hit, -torch.inf).logsumexp(-1)
    return target_logit - torch.logaddexp(target_logit, others)


def check_samples(samples: int, n_classes: int) -> int:
    """Returns K, the number of samples, at most the number of words."""
    check_whole("samples", samples)
    if samples < 1:
        raise ValueError(f"samples must be at least 1; got {samples}")
    return min(samples, n_classes)


class Sampled(FullSoftmax):
    """A full softmax that trains on the targets and one set of samples per batch, and is evaluated in full."""

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        counts: Tensor | Sequence[int],
        proposal: Kind = "unigram",
        samples: int = SAMPLES,
        text: NDArray[Any] | None = None,
        biases: Biases = "counts",
        ignore_index: int = -100,
    ) -> None:
        """`counts` (V,); `samples`: K, at most V of them are drawn; `text`: for the proposal "bigram";
        `biases`: where they start."""
        super().__init__(in_features, n_classes, counts, biases, ignore_index)
        self.samples = check_samples(samples, n_classes)
        self.proposal = Proposal(proposal, counts, n_classes, text)

    def forward(self, hidden: Tensor, target: Tensor) -> HeadOutput:  # type: ignore[override]
        """log P(target), in training an estimate, and the mean loss. `hidden` (..., D), `target` (...)."""
        if not self.training:
            return super().forward(hidden, target)
        rows, words, used = flat(hidden, target, self.ignore_index)
        drawn = self.proposal(words, used, self.samples)
        together = torch.cat((words, drawn.words))  # (T + K,): the vectors of both in one gather
        vectors = F.embedding(together, self.weight)
        biases = F.embedding(together, self.bias[:, None]).squeeze(1)
        n = words.numel()
        of_target = precise(rows * vectors[:n]).sum(-1) + biases[:n]  # (T,)
        of_drawn = precise(F.linear(rows, vectors[n:], biases[n:]))  # (T, K)
        output, gain = self.estimate(words, of_target, of_drawn, drawn)
        loss = mean_loss(torch.where(used, gain, 0.0), target, self.ignore_index).loss
        return HeadOutput(torch.where(used, output, 0.0).reshape(target.shape), loss)

    def estimate(self, words: Tensor, of_target: Tensor, of_drawn: Tensor, drawn: Draw) -> tuple[Tensor, Tensor]:
        """log P(target), and what training maximises, both (T,); `words` (T,) and the scores (T,), (T, K)."""
        raise NotImplementedError


@register("importance")
class ImportanceSampling(Sampled):
    """Estimates the sum over all words from the samples."""

    def estimate(self, words: Tensor, of_target: Tensor, of_drawn: Tensor, drawn: Draw) -> tuple[Tensor, Tensor]:
        """The estimated log P(target), for both."""
        log_p = sampled_log_prob(of_target, of_drawn, drawn.log_q, words[:, None] == drawn.words)
        return log_p, log_p


class LogZ(ExactBuffers):
    """The constant subtracted from every score, stored with the weights."""

    value: Tensor  # ()

    def __init__(self, value: float) -> None:
        super().__init__()
        self.register_buffer("value", torch.tensor(value, dtype=torch.float32))


@register("nce")
class NoiseContrastive(Sampled):
    """Learns to distinguish each target from K noise words, which a batch shares.

    In training P is only as normalised as the training has made it; outside of training the head divides by the sum
    over all words, so that its answers can be compared with those of other heads.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        counts: Tensor | Sequence[int],
        normalizer: float | Literal["learned"] | None = None,
        text: NDArray[Any] | None = None,
        **options: Any,
    ) -> None:
        """`counts` (V,), `text` and the other options: as `Sampled` takes them.

        normalizer: log Z, taken off every score: a number that stays, or "learned". None: that of the biases, with
            which a model that knows nothing else starts normalised, from the uniform distribution or from the counts;
            from Mnih & Teh's 0 it starts with every word a certainty, and is far slower to train. A learned one
            starts there too.
        """
        super().__init__(in_features, n_classes, counts, text=text, **options)
        given = float(normalizer) if isinstance(normalizer, (int, float)) else None
        if normalizer not in (None, "learned") and (given is None or not math.isfinite(given)):
            raise ValueError(f"normalizer must be a finite number, None or 'learned'; got {normalizer!r}")
        of_biases = math.log(n_classes) if self.counted is None else float(self.counted.double().logsumexp(0))
        self.log_z = LogZ(of_biases if given is None else given)
        # The learned part is relative to the start, so that it is near zero at first, as other weights are.
        self.offset = nn.Parameter(torch.zeros(1)) if normalizer == "learned" else None

    def estimate(self, words: Tensor, of_target: Tensor, of_drawn: Tensor, drawn: Draw) -> tuple[Tensor, Tensor]:
        """log P(target) as normalised so far, and the log-probability of telling target and noise apart."""
        log_z = self.log_z.value if self.offset is None else self.log_z.value + self.offset
        score, noise = of_target - log_z.to(of_target.dtype), of_drawn - log_z.to(of_drawn.dtype)
        log_k = math.log(self.samples)
        true = F.logsigmoid(score - (drawn.target_log_q + log_k).to(score.dtype))
        false = F.logsigmoid((drawn.log_q + log_k).to(noise.dtype) - noise).sum(-1)
        return score, true + false
