"""The full softmax with the layer's interface: linear and cross entropy, also compiled or computed in chunks.

Shapes: T tokens, D width, V words.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.checks import check_counts, check_target, check_whole
from coterie.clustering.prior import log_frequency
from coterie.softmax import HeadOutput
from coterie_lab.heads.dense import DenseAnswers, cross_entropy, mean_loss, precise
from coterie_lab.heads.registry import register

Biases = Literal["counts", "random"]


@register("full")
class FullSoftmax(DenseAnswers, nn.Linear):
    """The baseline of every output layer: all V logits of every token."""

    counted: Tensor | None = None  # (V,) initial biases, if they come from the counts

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        counts: Tensor | Sequence[int] | None = None,
        biases: Biases = "counts",
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> None:
        """`biases`: where they start, from the `counts` (V,), if there are any, as the layer's do, or at "random", as
        torch has it."""
        super().__init__(in_features, n_classes)
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing must be at least 0 and below 1; got {label_smoothing}")
        check_whole("ignore_index", ignore_index)
        self.n_classes = n_classes
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing
        if biases not in ("counts", "random"):
            raise ValueError(f"biases must start from the 'counts' or at 'random'; got {biases!r}")
        if counts is not None and biases == "counts":
            self.counted = log_frequency(check_counts(counts, n_classes))
        self._start_biases()

    def reset_parameters(self) -> None:
        """Initialises the weights anew; resets the biases."""
        super().reset_parameters()
        self._start_biases()

    def _start_biases(self) -> None:
        if self.counted is not None:
            with torch.no_grad():
                self.bias.copy_(self.counted)

    def forward(self, hidden: Tensor, target: Tensor) -> HeadOutput:  # type: ignore[override]
        """log P(target) and the mean loss. `hidden` (..., D), `target` (...)."""
        target = check_target(hidden, target)
        return cross_entropy(super().forward(hidden), target, self.ignore_index, self.label_smoothing)

    def log_prob(self, hidden: Tensor) -> Tensor:
        """(..., D) → (..., V)."""
        return precise(super().forward(hidden)).log_softmax(-1)


@register("full-compiled")
def full_compiled(in_features: int, n_classes: int, counts: Tensor, **options: Any) -> FullSoftmax:
    """The full softmax through `torch.compile`."""
    head = FullSoftmax(in_features, n_classes, counts, **options)
    head.compile()
    return head


@register("full-chunked")
def full_chunked(in_features: int, n_classes: int, counts: Tensor, **options: Any) -> "ChunkedFullSoftmax":
    """The full softmax with torch's chunked loss, if torch has it."""
    if not hasattr(F, "linear_cross_entropy"):
        raise ValueError(
            "the head 'full-chunked' needs torch.nn.functional.linear_cross_entropy, which this torch lacks: "
            "install torch 2.13 or later, or use 'full' or 'full-compiled'"
        )
    return ChunkedFullSoftmax(in_features, n_classes, counts, **options)


class ChunkedFullSoftmax(FullSoftmax):
    """The same by `F.linear_cross_entropy`, which never stores all T × V logits; label smoothing needs them all."""

    def forward(self, hidden: Tensor, target: Tensor) -> HeadOutput:  # type: ignore[override]
        """log P(target) and the mean loss. `hidden` (..., D), `target` (...)."""
        if self.label_smoothing:
            return super().forward(hidden, target)
        target = check_target(hidden, target)
        lost = F.linear_cross_entropy(
            hidden.reshape(-1, self.in_features), self.weight, target.reshape(-1), linear_bias=self.bias,
            ignore_index=self.ignore_index, reduction="none", options=nn.LinearCrossEntropyOptions(),
        )  # fmt: skip
        return mean_loss(-precise(lost), target, self.ignore_index)
