"""Chromium, driven by Playwright, and a page that records every problem in it.

Problems are errors on the console, exceptions, failed or refused requests, reports of the content
security policy, and dialogs.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE localhost",
)
WAIT_SECONDS = 20.0
WATCH = """([text, selector]) => {
  const root = document.documentElement;
  delete root.dataset.seenAt;
  const look = () => {
    if (!document.querySelector(selector).innerText.includes(text)) return;
    root.dataset.seenAt = Date.now();
    observer.disconnect();
  };
  const observer = new MutationObserver(look);
  observer.observe(document.body, { subtree: true, childList: true, characterData: true });
  look();
}"""


def program() -> str:
    """Path of Chromium; skips the test if it is not installed."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    pytest.skip("needs Chromium (apt-get install chromium)")


@contextmanager
def started() -> Iterator[Any]:
    """Start a headless browser."""
    path = program()
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*FLAGS])
        try:
            yield browser
        finally:
            browser.close()


class Reader:
    """A page of a browser, and the problems that occurred in it.

    Attributes:
        page: Playwright's page.
        problems: descriptions of the problems.
        requests: the URLs that the page requested.
    """

    def __init__(self, context: Any, url: str) -> None:
        self.url = url
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page = context.new_page()
        self.page.set_default_timeout(WAIT_SECONDS * 1000)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        self.page.on("requestfailed", self._on_request_failed)
        self.page.on("response", self._on_response)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", self._on_request)

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning", "assert"):
            self.problems.append(f"console: {message.text}")

    def _on_request_failed(self, request: Any) -> None:
        # Leaving a page aborts its stream and its pending requests.
        if "ERR_ABORTED" not in (request.failure or ""):
            self.problems.append(f"failed: {request.url} {request.failure}")

    def _on_response(self, response: Any) -> None:
        if response.status >= 400:
            self.problems.append(f"{response.status}: {response.url}")

    def _on_request(self, dialog: Any) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, path: str) -> None:
        """Go to a page; wait until it is live if it has a live part."""
        self.page.goto(self.url + path)
        if self.page.locator("#live[hx-sse\\:connect]").count():
            self.until("document.documentElement.dataset.live === 'on'")

    def text(self, selector: str = "main") -> str:
        """The text of the first element that the selector matches."""
        return str(self.page.locator(selector).first.inner_text())

    def until(self, script: str, seconds: float = WAIT_SECONDS) -> None:
        """Wait until a JavaScript expression is true. (Playwright's own method needs `eval`.)"""
        deadline = time.monotonic() + seconds
        while not self.page.evaluate(script):
            assert time.monotonic() < deadline, f"not in {seconds:.0f} s: {script}"
            self.page.wait_for_timeout(20)

    def wait_for(self, text: str, selector: str = "main", seconds: float = WAIT_SECONDS) -> None:
        """Wait until an element contains a text."""
        deadline = time.monotonic() + seconds
        while text not in (said := self.text(selector)):
            assert time.monotonic() < deadline, f"{text!r} not in {seconds:.0f} s: {said}"
            self.page.wait_for_timeout(20)

    def watch_for(self, text: str, selector: str = "main") -> None:
        """Start to record when an element contains a text (see `seconds_until_seen`)."""
        self.page.evaluate(WATCH, [text, selector])

    def seconds_until_seen(self, since: float) -> float:
        """Seconds from `since` (a `time.time()`) until the text appeared."""
        self.until("document.documentElement.dataset.seenAt !== undefined")
        seen_at = self.page.evaluate("document.documentElement.dataset.seenAt")
        return float(seen_at) / 1000 - since

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            self.page.keyboard.press(key)

    def focused(self) -> str:
        """The text or name of the focused element."""
        script = "() => { const e = document.activeElement; return e.innerText || e.name || e.id; }"
        return str(self.page.evaluate(script)).strip()

    def close(self) -> None:
        """Close the page."""
        self.page.close()
