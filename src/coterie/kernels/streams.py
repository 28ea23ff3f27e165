"""Small products beside large ones: a second stream, inside a CUDA graph.

A product of the cluster level takes a few microseconds and leaves most of the GPU idle; in a graph it can run while a
kernel of the word level does. Launched one by one, the host's work for a second stream would take longer than is won,
so outside of a capture everything stays in one line.
"""

import torch
from torch import Tensor

_streams: dict[int, torch.cuda.Stream] = {}


class Beside:
    """What is launched inside may run beside what is launched after it, until `join` is called: whatever reads its
    results comes after that call.

    Memory allocated inside is safe to use after it: it is given to others only inside of a later block, which first
    waits for all that went before.
    """

    def __init__(self, like: Tensor) -> None:
        self.here: torch.cuda.Stream | None = None
        if torch.compiler.is_compiling() or not (like.is_cuda and torch.cuda.is_current_stream_capturing()):
            return
        self.here = torch.cuda.current_stream(like.device)
        if (side := _streams.get(like.get_device())) is None:
            side = _streams[like.get_device()] = torch.cuda.Stream(like.device)
        self.side = side

    def __enter__(self) -> "Beside":
        if self.here is not None:
            self.side.wait_stream(self.here)
            self.on_side = torch.cuda.stream(self.side)
            self.on_side.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self.here is not None:
            self.on_side.__exit__(*error)

    def join(self) -> None:
        """Waits, on the device, for what was launched inside."""
        if self.here is not None:
            self.here.wait_stream(self.side)
