"""Functions that torch.compile sees as one opaque operator and that are called directly otherwise.

PyTorch's dispatch of a custom operator takes the host longer than most of the kernels take the GPU, so the eager path
avoids it.
"""

from collections.abc import Callable
from typing import Any

import torch


class Operator:
    """A function of tensors with its fake (shapes only) for tracing; `op` is the registered operator."""

    def __init__(
        self, name: str, function: Callable[..., Any], fake: Callable[..., Any], mutates_args: tuple[str, ...] = ()
    ) -> None:
        self.function = function
        self.op = torch.library.custom_op(f"coterie::{name}", function, mutates_args=mutates_args)
        self.op.register_fake(fake)

    def __call__(self, *args: Any) -> Any:
        return self.op(*args) if torch.compiler.is_compiling() else self.function(*args)
