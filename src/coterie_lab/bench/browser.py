"""A real browser, for benchmarks and tests: Chromium, driven by Playwright."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


@contextmanager
def browsing() -> Iterator[Any]:
    """A browser, headless."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise ImportError("a browser needs the package playwright: pip install playwright") from error
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise FileNotFoundError("there is no Chromium (on Debian: apt-get install chromium)")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, headless=True, args=list(QUIET))
        yield browser
        browser.close()


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
