"""The other softmaxes, behind the layer's contract."""

from coterie.baselines.adaptive import AdaptiveSoftmax
from coterie.baselines.cnn import SpelledSoftmax
from coterie.baselines.differentiated import DifferentiatedSoftmax
from coterie.baselines.full import ChunkedFullSoftmax, FullSoftmax
from coterie.baselines.huffman import HuffmanSoftmax
from coterie.baselines.importance import ImportanceSampling
from coterie.baselines.material import Material
from coterie.baselines.nce import NoiseContrastive
from coterie.baselines.registry import HEADS, build, register

__all__ = [
    "HEADS",
    "AdaptiveSoftmax",
    "ChunkedFullSoftmax",
    "DifferentiatedSoftmax",
    "FullSoftmax",
    "HuffmanSoftmax",
    "ImportanceSampling",
    "Material",
    "NoiseContrastive",
    "SpelledSoftmax",
    "build",
    "register",
]
