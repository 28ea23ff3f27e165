"""A single thread for the model, with a queue of limited length and waiting time."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Answer = TypeVar("Answer")


class Busy(Exception):
    """Raised if too many calls are waiting, or one takes too long."""


class Worker:
    """Runs calls one after the other in a thread of its own, so that the server's thread stays free."""

    def __init__(self, waiting: int = 128, seconds: float = 20.0) -> None:
        """`waiting`: the most calls that may wait; `seconds`: how long a call may take."""
        self.waiting, self.seconds, self.n = waiting, seconds, 0
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")

    async def __call__(self, call: Callable[[], Answer]) -> Answer:
        if self.n >= self.waiting:
            raise Busy(f"{self.n} questions are waiting already: ask again in a moment")
        self.n += 1
        try:
            async with asyncio.timeout(self.seconds):
                return await asyncio.get_running_loop().run_in_executor(self.thread, call)
        except TimeoutError:
            raise Busy(f"no answer within {self.seconds:g} seconds: ask again, or for less") from None
        finally:
            self.n -= 1
