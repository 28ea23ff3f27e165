"""What the tests of the Triton kernels share: a device, clusters of odd sizes, and an interpreter that can be trusted.

Its fixtures work in the modules that import them.
"""

import pytest
import torch

from coterie.clustering.partition import Partition

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = (4, 0, 1, 66, 0, 13, 70)  # words of each cluster: empty, alone, full; an odd number of them
N_WORDS, N_CLUSTERS = sum(SIZES), len(SIZES)
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}  # of the largest value
DTYPES = list(TOLERANCE)


@pytest.fixture(autouse=True, scope="module")
def interpreter_knows_bfloat16():
    """The interpreter keeps bfloat16 as bits; its `dot` multiplies the bits, and it rounds towards zero."""
    if DEVICE == "cuda":
        yield
        return
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    dot, cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl

    def floats(x):
        if x.dtype.scalar != tl.bfloat16:
            return x
        return TensorHandle(torch.tensor(x.data).view(torch.bfloat16).float().numpy(), tl.float32)

    def rounded(self, x, dtype):
        if (x.dtype.scalar, dtype.scalar) != (tl.float32, tl.bfloat16):
            return cast(self, x, dtype)
        return TensorHandle(torch.tensor(x.data).bfloat16().view(torch.uint16).numpy(), tl.bfloat16)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            InterpreterBuilder, "create_dot", lambda self, a, b, *rest: dot(self, floats(a), floats(b), *rest)
        )
        patch.setattr(InterpreterBuilder, "cast_impl", rounded)
        yield


@pytest.fixture(autouse=True)
def new_memory_is_nan():
    """Whatever a kernel should have written and has not is then seen."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def seats(generator=None):
    cluster_of = torch.repeat_interleave(torch.arange(N_CLUSTERS), torch.tensor(SIZES))
    return Partition(cluster_of[torch.randperm(N_WORDS, generator=generator)], N_CLUSTERS, capacity=70).to(DEVICE)
