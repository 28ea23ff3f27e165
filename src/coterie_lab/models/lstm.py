"""An LSTM that computes in bfloat16 under autocast.

PyTorch's autocast makes cuDNN compute in float16, even if it is set to bfloat16, and the small gradients of a mean over
thousands of tokens would underflow.

Shapes: B sequences, L steps, E input width, D hidden width.
"""

import torch
from torch import Tensor, nn

State = tuple[Tensor, Tensor]  # each (layers, B, D)


class LSTM(nn.LSTM):
    """`nn.LSTM` over (B, L, E); in bfloat16 under autocast on a GPU, elsewhere in the dtype of the weights."""

    def __init__(self, input_size: int, hidden_size: int, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__(input_size, hidden_size, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)

    def forward(self, input: Tensor, state: State | None = None) -> tuple[Tensor, State]:  # type: ignore[override]
        """(B, L, E) → (B, L, D), and the state after it in the dtype of the weights."""
        if not (input.is_cuda and torch.is_autocast_enabled("cuda")):
            with torch.autocast(input.device.type, enabled=False):
                output, state = super().forward(input, state)
            return output, state
        if state is None:
            zeros = input.new_zeros(self.num_layers, input.shape[0], self.hidden_size)
            state = zeros, zeros
        with torch.autocast("cuda", enabled=False):
            output, hidden, cell = torch.lstm(
                input.bfloat16(), tuple(part.bfloat16() for part in state), self._rounded(), True, self.num_layers,
                self.dropout, self.training, False, True,
            )  # fmt: skip
        return output, (hidden.float(), cell.float())

    def _rounded(self) -> list[Tensor]:
        """The weights in bfloat16, in the contiguous layout that cuDNN needs: all matrices, then all biases."""
        given = [weight for layer in self.all_weights for weight in layer]
        order = sorted(range(len(given)), key=lambda i: given[i].ndim == 1)
        flat = torch.cat([given[i].reshape(-1) for i in order]).bfloat16()
        pieces = dict(zip(order, flat.split([given[i].numel() for i in order]), strict=True))
        return [pieces[i].view(weight.shape) for i, weight in enumerate(given)]
