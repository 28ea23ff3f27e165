"""What tests of Triton kernels ask for."""

import pytest
import torch


@pytest.fixture
def new_memory_is_nan():
    """Whatever a kernel should have written and has not is then seen."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
