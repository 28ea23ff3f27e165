"""The gradient of a large word matrix, if clusters have few tokens: one product with a sparse matrix.

Each row of this gradient is a sum over the few tokens of the word's cluster. A loop over clusters would write each row
to a scratch buffer and then scatter it to an address that the processor cannot prefetch. Instead, the gradients of the
logits form a sparse matrix with a row per word; its product with the hidden vectors writes all rows once, in order.

Shapes: T tokens, D width, V words, C clusters, N tokens of one cluster, S words of one cluster.
"""

import warnings
from functools import cache, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from coterie.loss.cpu import Pass

# With more tokens per word than this, on average, products of whole clusters are faster.
FEW = 6
# Below this many numbers there is little to gain.
LARGE = 1 << 20


class ByWord:
    """Collects the gradients of all logits, then multiplies once."""

    def __init__(self, over: "Pass", weight: Tensor) -> None:
        self._pass = over
        self._of = (over.counts * over.sizes).to(torch.int32)  # (C,)
        self._values = weight.new_empty(int(self._of.sum()))  # cluster by cluster, each (N, S)
        # The gradients of each cluster's logits (N, S), for the pass to write.
        self.parts = torch.split(self._values, self._of.tolist())

    @staticmethod
    def pays(over: "Pass", hidden: Tensor, weight: Tensor) -> bool:
        """Whether this is faster than a product per cluster."""
        if not hidden.dtype == weight.dtype == torch.float32 or weight.device.type != "cpu" or weight.numel() < LARGE:
            return False
        return torch.backends.mkl.is_available() and int((over.counts * over.sizes).sum()) <= FEW * weight.shape[0]

    def multiply(self, hidden: Tensor, scale: float, out: Tensor) -> None:
        """Writes `scale` times the gradient to `out` (V, D). `hidden` (T, D), in the grouping's order."""
        _suppress_beta_warning()
        over, n_words = self._pass, out.shape[0]
        counts, sizes = over.counts.to(torch.int32), over.sizes.to(torch.int32)  # (C,)
        first = _exclusive_cumsum(counts)  # (C,) the first token of each cluster
        # The value of a token and a word of its cluster is at `begin` + token · size + the index of the word.
        begin = _exclusive_cumsum(self._of) - first * sizes - _exclusive_cumsum(sizes)  # (C,)
        up_to = partial(torch.arange, dtype=torch.int32, device=out.device)
        places = up_to(n_words)
        clusters = up_to(counts.numel()).repeat_interleave(over.sizes, output_size=n_words)
        place, cluster = (torch.empty_like(part).scatter_(0, over.words, part) for part in (places, clusters))  # (V,)
        counts, first, begin, sizes = (part.index_select(0, cluster) for part in (counts, first, begin, sizes))  # (V,)
        starts = counts.new_zeros(n_words + 1)
        torch.cumsum(counts, 0, dtype=torch.int32, out=starts[1:])
        word = torch.repeat_interleave(counts, output_size=self._values.numel())
        columns = (first - starts[:-1]).index_select(0, word).add_(up_to(word.numel()))
        kept_at = sizes.index_select(0, word).mul_(columns).add_((begin + place).index_select(0, word))
        values = self._values.index_select(0, kept_at)
        matrix = torch.sparse_csr_tensor(starts, columns, values, (n_words, hidden.shape[0]), check_invariants=False)
        torch.addmm(out, matrix, hidden, beta=0, alpha=scale, out=out)


def _exclusive_cumsum(parts: Tensor) -> Tensor:
    """The exclusive cumulative sum."""
    return parts.cumsum(0, dtype=parts.dtype) - parts


@cache
def _suppress_beta_warning() -> None:
    """Triggers PyTorch's one warning that sparse CSR tensors are in beta, and suppresses it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor([0, 1], [0], [1.0], (1, 1), check_invariants=False)
