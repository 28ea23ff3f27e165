"""A function that the compiler takes as one opaque operator, and that is otherwise called as it is.

PyTorch's dispatch of a custom operator takes the host longer than most of the kernels take the GPU. Outside of a
compiled graph nothing needs it.
"""

from collections.abc import Callable
from typing import Any

import torch

from coterie.loss.levels import refuse_second_derivatives


class Operator:
    """A function of tensors, its shapes-only twin, and optionally its gradient."""

    def __init__(
        self, name: str, function: Callable[..., Any], fake: Callable[..., Any], mutates_args: tuple[str, ...] = ()
    ) -> None:
        self.eager = function
        self.op = torch.library.custom_op(f"coterie::{name}", function, mutates_args=mutates_args)
        self.op.register_fake(fake)

    def differentiable(
        self,
        setup_context: Callable[..., None],
        backward: Callable[..., Any],
        eager_backward: Callable[..., Any] | None = None,
    ) -> None:
        """Gives the function a gradient; `eager_backward`: where it is another one outside of a compiled graph."""
        self.op.register_autograd(backward, setup_context=setup_context)

        # Not PyTorch's way of a forward without ctx: it looks up the function's signature at every call.
        def forward(ctx: Any, *inputs: Any) -> Any:
            output = function(*inputs)
            setup_context(ctx, inputs, output)
            return output

        def once(ctx: Any, *grads: Any) -> Any:
            refuse_second_derivatives()
            return (eager_backward or backward)(ctx, *grads)

        function, methods = self.eager, {"forward": forward, "backward": once}
        eager: Any = type("Eager", (torch.autograd.Function,), {k: staticmethod(v) for k, v in methods.items()})
        self.eager = eager.apply

    def __call__(self, *args: Any) -> Any:
        return self.op(*args) if torch.compiler.is_compiling() else self.eager(*args)
