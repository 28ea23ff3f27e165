"""An LSTM layer that may compute in float16 on a GPU.

cuDNN has a kernel that stays on the device for a whole sentence, several times faster than one launched for every word,
and it is for float16. Small gradients vanish in float16; so inside this layer, and only there, they are multiplied by a
power of two.

Shapes: B rows, L steps, E input width, D hidden width.
"""

import torch
from torch import Tensor, nn

State = tuple[Tensor, Tensor]  # each (1, B, D)
# Gradients of a mean over a thousand words are about a thousandth of those of one: they come back to about one, which
# is in the middle of float16's range (6e-8 to 65,504).
SCALE = 1024.0


class LSTM(nn.LSTM):
    """One layer, batch first; `half`: in float16 where there is a GPU, with gradients scaled."""

    def __init__(self, width: int, hidden: int, half: bool = False) -> None:
        super().__init__(width, hidden, batch_first=True)
        self.half_wanted = half
        self.scaled = False  # whether the last pass was
        for parameter in self.parameters():
            parameter.register_hook(self._unscale)

    def forward(self, rows: Tensor, state: State | None = None) -> tuple[Tensor, State]:  # type: ignore[override]
        """(B, L, E) → (B, L, D), and the state after the last step."""
        half = self.half_wanted and rows.is_cuda and torch.is_grad_enabled()
        # Without this, under autocast cuDNN computes LSTMs in float16 even if bfloat16 was asked for.
        with torch.autocast(rows.device.type, dtype=torch.float16, enabled=half):
            return self.scaled_pass(rows.float(), state) if half else self.plain_pass(rows.float(), state)

    def plain_pass(self, rows: Tensor, state: State | None) -> tuple[Tensor, State]:
        """As torch computes it."""
        self.scaled = False
        output, state = super().forward(rows, state)
        return output, state

    def scaled_pass(self, rows: Tensor, state: State | None) -> tuple[Tensor, State]:
        """The same, with gradients larger by SCALE inside; float32 comes out."""
        self.scaled = True
        inside = None if state is None else (_scaled(state[0], 1 / SCALE), _scaled(state[1], 1 / SCALE))
        output, (hidden, cell) = super().forward(_scaled(rows, 1 / SCALE), inside)
        return _scaled(output.float(), SCALE), (_scaled(hidden.float(), SCALE), _scaled(cell.float(), SCALE))

    def _unscale(self, gradient: Tensor) -> Tensor:
        return gradient / SCALE if self.scaled else gradient


def _scaled(values: Tensor, factor: float) -> Tensor:
    """The same values; their gradients, on the way back, times a factor."""
    values = values.view_as(values)
    if values.requires_grad:
        values.register_hook(lambda gradient: gradient * factor)
    return values
