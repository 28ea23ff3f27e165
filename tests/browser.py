"""Pages in a real browser, and how to wait for what they show; without a browser these tests are skipped."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from coterie_lab.bench import browser
from coterie_lab.bench.browser import Visit

__all__ = ["Visit", "browsing", "counts", "eventually", "shows"]


@contextmanager
def browsing() -> Iterator[Any]:
    """A browser, or the test is skipped."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(browser.browsing())
        except (ImportError, FileNotFoundError) as error:
            pytest.skip(str(error))
        yield found


def eventually(holds: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether something holds before long; a page's own way to wait is closed to it by its policy."""
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return holds()


def shows(locator: Any, text: str) -> None:
    """Fails unless an element comes to show this text."""
    assert eventually(lambda: locator.inner_text() == text), locator.inner_text()[:200]


def counts(locator: Any, n: int) -> None:
    """Fails unless there come to be so many elements."""
    assert eventually(lambda: locator.count() == n), locator.count()
