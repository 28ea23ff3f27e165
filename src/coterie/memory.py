"""Memory as large as the vocabulary: that of gradients is used again from one step to the next, pages are large.

The system hands out large pieces of memory page by page, cleared, and takes them back when they are freed: for a
gradient that is made anew every step, this costs more than computing it. A piece is used again once no tensor lies in
it any more, and only then: a gradient that somebody still holds never changes.
"""

import contextlib
import ctypes
import mmap
import threading
import weakref

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

# Smaller tensors are left to the allocator, which keeps their memory by itself.
LARGE = 4 << 20
# Pieces kept per parameter while nobody uses them.
IDLE = 2
# Pages of 2 MB: a row a page is then no longer a miss of the address cache a row.
HUGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)
PAGE = 2 << 20


def in_large_pages(fresh: Tensor) -> Tensor:
    """The same tensor; where the system can, its memory, as yet untouched, will be of large pages."""
    if HUGE_PAGES is None or fresh.device.type != "cpu" or fresh.nbytes < LARGE:
        return fresh
    # Advice alone: whatever comes of it, the numbers are the same. Of whole pages: others may have the rest.
    first = -(-fresh.data_ptr() // PAGE) * PAGE
    last = (fresh.data_ptr() + fresh.nbytes) // PAGE * PAGE
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(max(last - first, 0)), HUGE_PAGES)
    return fresh


class _Piece:
    """Memory that knows whether a tensor lies in it."""

    def __init__(self, n_bytes: int) -> None:
        assert HUGE_PAGES is not None
        self.memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a system without them: pages of the usual size
            self.memory.madvise(HUGE_PAGES)
        self.user: weakref.ref[memoryview] | None = None

    @property
    def idle(self) -> bool:
        return self.user is None or self.user() is None

    def lend(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """A tensor in this memory; its storage keeps the view alive, which tells when the last tensor on it is gone."""
        view = memoryview(self.memory)
        self.user = weakref.ref(view)
        # Set, then shaped in place: a gradient should not be a view of some other tensor.
        return torch.empty(0, dtype=dtype).set_(torch.frombuffer(view, dtype=dtype).untyped_storage()).resize_(shape)


_pieces = WeakTensorKeyDictionary()  # parameter → its pieces; with the parameter go those that are idle
_lock = threading.Lock()


def empty_like(parameter: Tensor) -> Tensor:
    """Contiguous and uninitialised, in the parameter's shape, dtype and device."""
    if HUGE_PAGES is None or parameter.device.type != "cpu" or parameter.nbytes < LARGE:
        return parameter.new_empty(parameter.shape)
    with _lock:
        pieces: list[_Piece] = _pieces.get(parameter, [])
        fitting = [piece for piece in pieces if piece.idle and len(piece.memory) == parameter.nbytes]
        piece = fitting[0] if fitting else _Piece(parameter.nbytes)
        gradient = piece.lend(parameter.shape, parameter.dtype)
        _pieces[parameter] = [piece, *(p for p in pieces if p is not piece and not p.idle), *fitting[1:IDLE]]
    return gradient
