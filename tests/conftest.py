"""What every test shares: Triton's interpreter where there is no GPU, one seed, and layers of odd shapes."""

import os
from dataclasses import replace
from functools import cache

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


@pytest.fixture(scope="module")
def interpreter():
    """Triton's interpreter, made quick and right about bfloat16; where there is a GPU it is not needed."""
    if torch.cuda.is_available():
        yield
        return
    from triton import language as tl
    from triton.runtime import interpreter

    Builder, Handle, patch_language = interpreter.InterpreterBuilder, interpreter.TensorHandle, interpreter._patch_lang
    options = interpreter.interpreter_builder.options
    dot, cast = Builder.create_dot, Builder.cast_impl

    @cache
    def languages(fn):
        return [module for module in (tl, tl.core) if any(value is module for value in fn.__globals__.values())]

    def patch_once(fn):
        """It patches the language again for every call of every function, which is half of its time."""
        if any(tl.core.is_builtin(module.load) for module in languages(fn)):
            return patch_language(fn)
        return interpreter._LangPatchScope()

    def floats(x):
        if x.dtype.scalar != tl.bfloat16:
            return x
        return Handle(torch.tensor(x.data).view(torch.bfloat16).float().numpy(), tl.float32)

    def dot_of_floats(self, a, b, *rest):
        """It keeps bfloat16 as bits, and would multiply the bits."""
        return dot(self, floats(a), floats(b), *rest)

    def rounded(self, x, dtype):
        """It would round towards zero."""
        if (x.dtype.scalar, dtype.scalar) != (tl.float32, tl.bfloat16):
            return cast(self, x, dtype)
        return Handle(torch.tensor(x.data).bfloat16().view(torch.uint16).numpy(), tl.bfloat16)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", patch_once)
        # It would look for integers that overflow at every sum, which is a quarter of its time; here all are small.
        patch.setattr(interpreter.interpreter_builder, "options", replace(options, sanitize_overflow=False))
        patch.setattr(Builder, "create_dot", dot_of_floats)
        patch.setattr(Builder, "cast_impl", rounded)
        yield
