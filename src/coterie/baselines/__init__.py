"""The other softmaxes, behind the layer's contract."""

from coterie.baselines.full import FullSoftmax

__all__ = ["FullSoftmax"]
