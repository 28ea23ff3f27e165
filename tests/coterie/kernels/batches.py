"""What the tests of the Triton kernels share: a device, and clusters of odd sizes."""

import torch

from coterie.clustering.partition import Partition

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = (4, 0, 1, 66, 0, 13, 70)  # words of each cluster: empty, alone, full; an odd number of them
N_WORDS, N_CLUSTERS = sum(SIZES), len(SIZES)
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}  # of the largest value
DTYPES = list(TOLERANCE)


def seats(generator=None):
    cluster_of = torch.repeat_interleave(torch.arange(N_CLUSTERS), torch.tensor(SIZES))
    return Partition(cluster_of[torch.randperm(N_WORDS, generator=generator)], N_CLUSTERS, capacity=70).to(DEVICE)
