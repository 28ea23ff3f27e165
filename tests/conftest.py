"""What every test shares: Triton's interpreter where there is no GPU, one seed, and layers of odd shapes."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported


# Tests run side by side, and some start programs of their own: more threads than cores would make them crawl.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
