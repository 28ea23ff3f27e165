"""Two optimisations for a CPU: distributing small pieces of work over its cores, and large pages for large tensors.

Operations on one cluster are too small for PyTorch's own threads: distributing the parts and waiting for the slowest
takes as long as the work. So here each thread works on whole clusters, and is set to run PyTorch on a single core.
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

# More threads than this only wait for the GIL and for memory.
MOST = 8
# The allocator keeps and reuses the memory of smaller tensors.
LARGE = 4 << 20
# Pages of 2 MB: reading scattered rows then rarely misses the TLB.
HUGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)
PAGE = 2 << 20

_lock = threading.Lock()  # building a pool changes the process's number of threads for a moment


def in_large_pages(fresh: Tensor) -> Tensor:
    """Asks the system to back a fresh tensor, not yet written to, by large pages; returns the tensor."""
    if HUGE_PAGES is None or fresh.device.type != "cpu" or fresh.nbytes < LARGE:
        return fresh
    # This is only advice, and may fail. It covers whole pages only: other tensors may share the rest.
    first = -(-fresh.data_ptr() // PAGE) * PAGE
    last = (fresh.data_ptr() + fresh.nbytes) // PAGE * PAGE
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(max(last - first, 0)), HUGE_PAGES)
    return fresh


def spread(work: Callable[[Iterator[int]], None], pieces: Sequence[int], n_threads: int) -> None:
    """Calls `work` once in each thread with an iterator; each piece goes to the thread that asks for it first."""
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
        torch.get_num_threads()  # PyTorch sets a thread's number at its first use: this must come before ours
        torch.set_num_threads(1)
        started.wait()

    pool = ThreadPoolExecutor(n_threads, "coterie", start)
    for _ in range(n_threads):
        pool.submit(int)
    started.wait()
    torch.set_num_threads(n_cores)  # the threads above have set the number for new threads to one
    return pool


# A forked process has none of its parent's threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
