"""Pages in a real browser, and how to wait for what they show; without a browser these tests are skipped."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from coterie_lab.bench import page


@contextmanager
def browsing() -> Iterator[Any]:
    """A browser, or the test is skipped."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(page.browsing())
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


class Visit:
    """A page that notes everything it should not do."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.url = url
        self.faults: list[str] = []
        self.requests: list[str] = []
        self.context = browser.new_context(**{"viewport": {"width": 1300, "height": 900}, **options})
        self.page = page = self.context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda said: self.faults.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("dialog", self._dismiss)
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(url)
        page.wait_for_selector("html[data-ready=yes]")

    def _dismiss(self, dialog: Any) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, *_: Any) -> None:
        self.context.close()

    def asked(self) -> list[str]:
        """The addresses that were asked for, beside the page's own and what it carries along."""
        return [
            url for url in self.requests if not url.startswith("data:") and url.split("#")[0] != self.url.split("#")[0]
        ]
