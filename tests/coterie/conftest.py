"""What tests of Triton kernels ask for: an interpreter that knows bfloat16, and new memory that is not zero."""

import pytest
import torch


@pytest.fixture(scope="module")
def interpreter_knows_bfloat16():
    """The interpreter keeps bfloat16 as bits; its `dot` multiplies the bits, and it rounds towards zero."""
    if torch.cuda.is_available():
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


@pytest.fixture
def new_memory_is_nan():
    """Whatever a kernel should have written and has not is then seen."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
