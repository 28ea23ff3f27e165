"""Several processes that wait for work, connected by gloo."""

import gc
import traceback
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


@contextmanager
def processes(n, folder):
    """A function that runs work(rank, n, *arguments) in all of n processes; a failure in any fails here."""
    context = mp.get_context("spawn")
    answers, queues = context.Queue(), [context.Queue() for _ in range(n)]
    started = [
        context.Process(target=_wait, args=(rank, n, folder / "store", jobs, answers))
        for rank, jobs in enumerate(queues)
    ]
    for process in started:
        process.start()

    def run(work, *arguments):
        for jobs in queues:
            jobs.put((work, arguments))
        failures = "\n".join(filter(None, (answers.get(timeout=120) for _ in queues)))
        assert not failures, failures

    yield run
    for process, jobs in zip(started, queues, strict=True):
        jobs.put(None)
        process.join()


def _wait(rank, n, store, jobs, answers):
    torch.set_num_threads(1)
    # One that waits in vain fails before long.
    patience = timedelta(seconds=40)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=n, timeout=patience)
    for work, arguments in iter(jobs.get, None):
        try:
            work(rank, n, *arguments)
            dist.barrier()
            answers.put(None)
        except Exception:
            answers.put(traceback.format_exc())
    gc.collect()  # reference cycles that still hold the group
    dist.destroy_process_group()
