"""Two things a CPU wants: small pieces of work spread over its cores, and large pages for large memory.

Operations on one cluster are too small to be split by PyTorch: handing out the parts and waiting for the slowest takes
as long as the work. PyTorch splits each operation by itself unless the thread that calls it is set to one core, which
the threads here are.
"""

import contextlib
import ctypes
import functools
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

# More threads than this wait for Python's lock and for the memory.
MOST = 8
# Smaller tensors are left to the allocator, which keeps their memory by itself.
LARGE = 4 << 20
# Pages of 2 MB: fetching a row far away then rarely misses the address cache.
HUGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)
PAGE = 2 << 20

_lock = threading.Lock()  # two threads that build a pool at once would each see the other's number of cores


def in_large_pages(fresh: Tensor) -> Tensor:
    """The same tensor; where the system can, its memory, as yet untouched, will be of large pages."""
    if HUGE_PAGES is None or fresh.device.type != "cpu" or fresh.nbytes < LARGE:
        return fresh
    # Advice alone: whatever comes of it, the numbers are the same. Whole pages only: other tensors may share the rest.
    first = -(-fresh.data_ptr() // PAGE) * PAGE
    last = (fresh.data_ptr() + fresh.nbytes) // PAGE * PAGE
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(max(last - first, 0)), HUGE_PAGES)
    return fresh


def spread(work: Callable[[Iterator[int]], None], pieces: Sequence[int], n_threads: int) -> None:
    """Calls `work` once in each thread; together they see every piece once, in order of their becoming free."""
    n_threads = min(n_threads, MOST)
    if n_threads <= 1 or len(pieces) <= 1:
        work(iter(pieces))
        return
    queue, inference = deque(pieces), torch.is_inference_mode_enabled()
    autocast, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def share() -> None:
        with torch.inference_mode(inference), torch.no_grad(), torch.autocast("cpu", dtype, autocast):
            work(_until_empty(queue))

    with _lock:
        pool = _pool(n_threads)
    for task in [pool.submit(share) for _ in range(min(n_threads, len(pieces)))]:
        task.result()


def _until_empty(queue: deque[int]) -> Iterator[int]:
    while True:
        try:
            yield queue.popleft()
        except IndexError:
            return


@functools.cache
def _pool(n_threads: int) -> ThreadPoolExecutor:
    started, n_cores = threading.Barrier(n_threads + 1), torch.get_num_threads()

    def start() -> None:
        torch.get_num_threads()  # a thread takes over the process's number when it first looks, and then never again
        torch.set_num_threads(1)
        started.wait()

    pool = ThreadPoolExecutor(n_threads, "coterie", start)
    for _ in range(n_threads):
        pool.submit(int)
    started.wait()
    torch.set_num_threads(n_cores)  # for threads to come: the last one to set it said one
    return pool


# A forked process has none of its parent's threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
