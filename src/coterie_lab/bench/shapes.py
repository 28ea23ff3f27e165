"""Problem sizes, problems of these sizes, and the floor: a lower bound on the time of any method.

A step of a two-level head reads the word matrix twice and writes its gradient once, and multiplies by two square
projections, forward and twice backward: one is of the tokens, the other of the tokens or of the √V cluster vectors,
whichever are fewer. The rates are measured in the same run: a large copy and a large product.

Shapes: T tokens, D width, V words.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.checks import default_clusters
from coterie_lab.bench.timing import measure


@dataclass(frozen=True)
class Shape:
    """A problem size."""

    words: int
    width: int
    tokens: int

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """From V,d,tokens."""
        try:
            shape = cls(*(int(part) for part in text.split(",")))
        except (ValueError, TypeError):
            shape = cls(0, 0, 0)
        if min(shape.words, shape.width, shape.tokens) < 1:
            raise ValueError(f"--shape takes V,d,tokens, three whole numbers such as 131072,1024,8192; got {text!r}")
        return shape

    def __str__(self) -> str:
        return f"V={self.words:,} d={self.width:,} T={self.tokens:,}"


SIZES = tuple(2**power for power in range(14, 21))  # words of a sweep
STANDARD = {
    "cpu": (Shape(44_370, 512, 2_560), Shape(131_072, 512, 1_024)),
    "cuda": (
        Shape(44_370, 512, 2_560), Shape(131_072, 1_024, 8_192), Shape(262_144, 1_024, 8_192),
        Shape(131_072, 4_096, 8_192), Shape(1_000_000, 256, 4_096),
    ),
}  # fmt: skip
SWEEP = {
    "cpu": tuple(Shape(words, 256, 512) for words in SIZES),
    "cuda": tuple(Shape(words, 512, 4_096) for words in SIZES),
}


def zipf_counts(n_words: int) -> Tensor:
    """How often each of V words occurs in a large text, by Zipf's law: (V,)."""
    return (1e9 / torch.arange(1, n_words + 1, dtype=torch.float64)).long()


def zipf_text(n_words: int, length: int, generator: torch.Generator | None = None) -> Tensor:
    """Words drawn by Zipf's law, (length,)."""
    law = zipf_counts(n_words).double().cumsum(0)
    draws = torch.rand(length, generator=generator, dtype=torch.float64) * law[-1]
    return torch.searchsorted(law, draws).clamp(max=n_words - 1)


def problem(shape: Shape, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Hidden vectors (T, D) and targets by Zipf's law (T,)."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(shape.tokens, shape.width, generator=generator).to(device, dtype)
    return hidden.requires_grad_(), zipf_text(shape.words, shape.tokens, generator).to(device)


@dataclass(frozen=True)
class Machine:
    """The measured rates of the device."""

    bytes_per_second: float
    operations_per_second: float

    @classmethod
    def measured(cls, device: torch.device, dtype: torch.dtype) -> "Machine":
        """Measures a copy much larger than any cache, and a square product."""
        on_gpu = device.type == "cuda"
        numbers = torch.randn(2, 2**29 if on_gpu else 2**26, device=device)
        copy = measure(lambda: numbers[0].copy_(numbers[1]), device)
        n = 8192 if on_gpu else 2048
        left, right = torch.randn(2, n, n, device=device).to(dtype)
        product = measure(lambda: left @ right, device)
        return cls(numbers.nbytes / copy.ms * 1e3, 2 * n**3 / product.ms * 1e3)

    def floor_ms(self, shape: Shape, dtype: torch.dtype) -> float:
        """A lower bound on the milliseconds of a step of the head."""
        moved = 3 * shape.words * shape.width * dtype.itemsize
        multiplied = 2 * 3 * (shape.tokens + min(shape.tokens, default_clusters(shape.words))) * shape.width**2
        return 1e3 * (moved / self.bytes_per_second + multiplied / self.operations_per_second)
