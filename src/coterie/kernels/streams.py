"""A second stream for small products, to run in parallel with large ones inside a CUDA graph.

A product of the cluster level takes a few microseconds and leaves most of the GPU idle; in a graph it can run in
parallel with a kernel of the word level. Outside of a capture, the host's work for a second stream would take longer
than it saves, so everything stays on the current stream.
"""

import torch
from torch import Tensor

_streams: dict[int, torch.cuda.Stream] = {}


class Beside:
    """Kernels launched inside may run in parallel with those launched after, until `join`: read their results after it.

    Memory allocated inside can be used after the block: the allocator reuses it only inside a later block, which first
    waits for all earlier work.
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
        """Makes the current stream wait for what was launched inside; the host does not wait."""
        if self.here is not None:
            self.here.wait_stream(self.side)
