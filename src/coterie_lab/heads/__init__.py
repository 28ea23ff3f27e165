"""The other softmaxes, with the layer's interface; importing this package registers them all by name."""

from coterie_lab.heads import two_level
from coterie_lab.heads.adaptive import AdaptiveSoftmax
from coterie_lab.heads.cnn import SpelledSoftmax
from coterie_lab.heads.differentiated import DifferentiatedSoftmax
from coterie_lab.heads.full import ChunkedFullSoftmax, FullSoftmax
from coterie_lab.heads.huffman import HuffmanSoftmax
from coterie_lab.heads.registry import HEADS, Head, Material, build, register
from coterie_lab.heads.sampled import ImportanceSampling, NoiseContrastive

__all__ = [
    "HEADS", "AdaptiveSoftmax", "ChunkedFullSoftmax", "DifferentiatedSoftmax", "FullSoftmax", "Head", "HuffmanSoftmax",
    "ImportanceSampling", "Material", "NoiseContrastive", "SpelledSoftmax", "build", "register", "two_level",
]  # fmt: skip
