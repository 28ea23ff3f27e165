"""Noise-contrastive estimation: which words are the text's, and which were drawn (Gutmann & Hyvärinen; Mnih & Teh).

Trained scores are log-probabilities only as far as the training has made them so; outside of training the head divides
by their sum, so that what it answers is normalised and comparable.

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
from coterie.faults import check_target
from coterie.softmax import HeadOutput
from coterie_lab.heads.dense import mean_loss
from coterie_lab.heads.full import Biases, FullSoftmax
from coterie_lab.heads.importance import SAMPLES, check_samples, chosen_logits
from coterie_lab.heads.proposals import Kind, Proposal


class LogZ(ExactBuffers):
    """What is taken off every score; kept with the weights, which mean nothing in training without it."""

    value: Tensor  # ()

    def __init__(self, value: float) -> None:
        super().__init__()
        self.register_buffer("value", torch.tensor(value, dtype=torch.float32))


class NoiseContrastive(FullSoftmax):
    """Learns to tell each target from K words of noise, which a batch shares; answers with a full softmax."""

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        counts: Tensor | Sequence[int],
        normalizer: float | Literal["learned"] | None = None,
        proposal: Kind = "unigram",
        samples: int = SAMPLES,
        text: NDArray[Any] | None = None,
        biases: Biases = "counts",
        ignore_index: int = -100,
    ) -> None:
        """`counts` (V,); `samples`: K, at most V of them are drawn; `text`: for the proposal "bigram".
        `biases`: where they start.

        normalizer: log Z, taken off every score: a number that stays, or "learned". None: that of the biases, with
            which a model that knows nothing else starts normalised, from the uniform distribution or from the counts;
            from Mnih & Teh's 0 it starts with every word a certainty, and is far slower to train. A learned one
            starts there too.
        """
        super().__init__(in_features, n_classes, counts, biases, ignore_index)
        self.samples = check_samples(samples, n_classes)
        self.proposal = Proposal(proposal, counts, n_classes, text)
        if normalizer not in (None, "learned") and not (
            isinstance(normalizer, (int, float)) and math.isfinite(normalizer)
        ):
            raise ValueError(f"normalizer must be a finite number, None or 'learned'; got {normalizer!r}")
        even = math.log(n_classes)
        known = even if self.counted is None else float(self.counted.double().logsumexp(0))
        given = float(normalizer) if isinstance(normalizer, (int, float)) else None
        self.log_z = LogZ(known if given is None else given)
        self._before = even if given is None else given  # of weights that were saved without one
        # How far off the start was: so what is learned begins near zero, as other weights do.
        self.offset = nn.Parameter(torch.zeros(1)) if normalizer == "learned" else None

    def forward(self, hidden: Tensor, target: Tensor) -> HeadOutput:  # type: ignore[override]
        """log P(target) and the mean loss; in training P is not normalised, and the loss that of telling words from
        noise. `hidden` (..., D), `target` (...)."""
        if not self.training:
            return super().forward(hidden, target)
        target = check_target(hidden, target)
        rows, words = hidden.reshape(-1, self.in_features), target.reshape(-1)
        used = words != self.ignore_index  # (T,)
        words = torch.where(used, words, 0)
        drawn = self.proposal(words, used, self.samples)
        score, noise = chosen_logits(rows, self.weight, self.bias, words, drawn.words)  # (T,), (T, K)
        log_z = self.log_z.value if self.offset is None else self.log_z.value + self.offset
        score, noise = score - log_z.to(score.dtype), noise - log_z.to(noise.dtype)
        log_k = math.log(self.samples)
        true = F.logsigmoid(score - (drawn.target_log_q + log_k).to(score.dtype))
        false = F.logsigmoid((drawn.log_q + log_k).to(noise.dtype) - noise).sum(-1)
        told = mean_loss(torch.where(used, true + false, 0.0), target, self.ignore_index)
        return HeadOutput(torch.where(used, score, 0.0).reshape(target.shape), told.loss)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if (weight := state_dict.get(prefix + "weight")) is not None:
            state_dict.setdefault(prefix + "log_z.value", torch.tensor(self._before, device=weight.device))
        super()._load_from_state_dict(state_dict, prefix, *rest)
