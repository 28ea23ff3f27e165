"""The other softmaxes, behind the layer's contract."""

from coterie_lab.heads.adaptive import AdaptiveSoftmax
from coterie_lab.heads.cnn import SpelledSoftmax
from coterie_lab.heads.differentiated import DifferentiatedSoftmax
from coterie_lab.heads.full import ChunkedFullSoftmax, FullSoftmax
from coterie_lab.heads.huffman import HuffmanSoftmax
from coterie_lab.heads.importance import ImportanceSampling
from coterie_lab.heads.material import Material
from coterie_lab.heads.nce import NoiseContrastive
from coterie_lab.heads.registry import HEADS, build, register

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
