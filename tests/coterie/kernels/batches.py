"""What the tests of the Triton kernels share: a device, and clusters of odd sizes beside words that stand alone."""

import torch

from coterie.clustering.partition import Partition

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = (4, 0, 1, 66, 0, 13, 70)  # words of each cluster: empty, alone, full; an odd number of them
ALONE, PLACES = 9, 12  # words that stand alone, and the columns there are for them
N_WORDS, N_CLUSTERS = sum(SIZES) + ALONE, len(SIZES)
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}  # of the largest value
DTYPES = list(TOLERANCE)


def seats(generator=None, alone=True, places=PLACES):
    """A partition; unless words stand `alone`, in some of the `places`, they are in the first cluster."""
    cluster_of = torch.repeat_interleave(torch.arange(N_CLUSTERS + 1), torch.tensor((*SIZES, ALONE)))
    cluster_of = cluster_of[torch.randperm(N_WORDS, generator=generator)]
    if not alone:
        cluster_of[cluster_of == N_CLUSTERS] = 0
    return Partition(cluster_of, N_CLUSTERS, capacity=70, n_own=places).to(DEVICE)
