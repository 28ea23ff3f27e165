"""Small products beside large ones: a second stream, inside a CUDA graph.

A product of the cluster level takes a few microseconds and leaves most of the GPU idle; in a graph it can run while a
kernel of the word level does. Launched one by one, the host's work for a second stream would take longer than is won,
so outside of a capture everything stays in one line.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_streams: dict[int, torch.cuda.Stream] = {}


@contextmanager
def beside(like: Tensor) -> Iterator[Callable[[], None]]:
    """What is launched inside may run beside what is launched after it, until the function that is yielded is called:
    whatever reads its results comes after that call. Memory allocated inside is safe to use after it: it is given to
    others only inside of a later call, which first waits for all that went before."""
    if torch.compiler.is_compiling() or not (like.is_cuda and torch.cuda.is_current_stream_capturing()):
        yield lambda: None
        return
    here = torch.cuda.current_stream(like.device)
    if (side := _streams.get(like.get_device())) is None:
        side = _streams[like.get_device()] = torch.cuda.Stream(like.device)
    side.wait_stream(here)
    with torch.cuda.stream(side):
        yield lambda: here.wait_stream(side)
