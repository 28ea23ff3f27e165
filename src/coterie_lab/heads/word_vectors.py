"""Word vectors to cluster: from the company that words keep in a text, or from a file.

Shapes: V words, E width of a word vector, N words of text, P different pairs of neighbours.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie_lab.heads.cooccurrence import neighbours

WIDTH = 100  # E


def vectors_from_text(text: NDArray[Any], n_words: int, width: int = WIDTH) -> Tensor:
    """A vector for each word, (V, E), from the text (N,).

    How much more often than by chance a word stands before and after each other one (positive pointwise mutual
    information), brought down to E numbers by a truncated singular value decomposition.
    """
    try:
        from scipy import sparse
        from sklearn.decomposition import TruncatedSVD
    except ImportError as error:
        raise ImportError(
            "word vectors from text need the package scikit-learn: pip install 'coterie-softmax[lab]', or give vectors="
        ) from error
    pairs = neighbours(text, n_words)
    count = pairs.count.double()  # (P,)
    before = torch.zeros(n_words, dtype=torch.float64).index_add_(0, pairs.first, count)
    after = torch.zeros(n_words, dtype=torch.float64).index_add_(0, pairs.second, count)
    by_chance = before[pairs.first] * after[pairs.second] / count.sum()
    information = (count / by_chance).log().clamp(min=0).float().numpy()  # (P,)
    first, second = pairs.first.numpy(), pairs.second.numpy()
    # A row for each word: what follows it, then what it follows.
    places = (np.concatenate((first, second)), np.concatenate((second, first + n_words)))
    company = sparse.csr_matrix((np.tile(information, 2), places), (n_words, 2 * n_words))
    found = TruncatedSVD(min(width, n_words - 1), random_state=0).fit_transform(company)
    return torch.from_numpy(np.ascontiguousarray(found, dtype=np.float32))


def vectors_from_file(path: str | Path) -> Tensor:
    """Word vectors, (V, E), as `numpy.save` wrote them."""
    try:
        return torch.from_numpy(np.asarray(np.load(path, allow_pickle=False), dtype=np.float32))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist: give a file of word vectors that numpy.save wrote") from None
    except (ValueError, EOFError, TypeError) as error:
        raise ValueError(
            f"{path} holds no word vectors: expected one array of V rows, as numpy.save writes it ({error})"
        ) from error
