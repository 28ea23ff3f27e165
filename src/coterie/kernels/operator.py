"""A function that the compiler takes as one opaque operator, and that is otherwise called directly.

PyTorch's dispatch of a custom operator takes the host longer than most of the kernels take the GPU. Outside of a
compiled graph nothing needs it.
"""

from collections.abc import Callable
from typing import Any

import torch


class Operator:
    """A function of tensors and its shapes-only twin; `op` is what the compiler sees."""

    def __init__(
        self, name: str, function: Callable[..., Any], fake: Callable[..., Any], mutates_args: tuple[str, ...] = ()
    ) -> None:
        self.function = function
        self.op = torch.library.custom_op(f"coterie::{name}", function, mutates_args=mutates_args)
        self.op.register_fake(fake)

    def __call__(self, *args: Any) -> Any:
        return self.op(*args) if torch.compiler.is_compiling() else self.function(*args)
