"""The other softmaxes, behind the layer's contract."""

from coterie.baselines.adaptive import AdaptiveSoftmax
from coterie.baselines.full import FullSoftmax
from coterie.baselines.registry import HEADS, build, register

__all__ = ["HEADS", "AdaptiveSoftmax", "FullSoftmax", "build", "register"]
