"""The floor: what must move and be multiplied whatever the method, at the rates this machine reaches.

A step of a two-level head reads the word matrix twice and writes its gradient once, and multiplies by two square
projections, forward and twice backward: one is of the tokens, the other of the tokens or of the √V cluster vectors,
whichever are fewer. Rates are measured in the same run: a large copy and a large product.

Shapes: T tokens, D width, V words.
"""

from dataclasses import dataclass

import torch

from coterie.checks import default_clusters
from coterie_lab.bench.timing import measure


@dataclass(frozen=True)
class Machine:
    """What the device reaches."""

    bytes_per_second: float
    operations_per_second: float

    @classmethod
    def measured(cls, device: torch.device, dtype: torch.dtype) -> "Machine":
        """A copy much larger than any cache, and a square product."""
        on_gpu = device.type == "cuda"
        numbers = torch.randn(2, 2**29 if on_gpu else 2**26, device=device)
        copy = measure(lambda: numbers[0].copy_(numbers[1]), device)
        n = 8192 if on_gpu else 2048
        left, right = torch.randn(2, n, n, device=device).to(dtype)
        product = measure(lambda: left @ right, device)
        return cls(numbers.nbytes / copy.ms * 1e3, 2 * n**3 / product.ms * 1e3)

    def floor_ms(self, n_words: int, width: int, tokens: int, dtype: torch.dtype) -> float:
        """Milliseconds a step of the head cannot go below."""
        moved = 3 * n_words * width * dtype.itemsize
        multiplied = 2 * 3 * (tokens + min(tokens, default_clusters(n_words))) * width**2
        return 1e3 * (moved / self.bytes_per_second + multiplied / self.operations_per_second)
