"""A page in a real browser, with everything that went wrong on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlparse

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, WebSocket

PATIENCE_MS = 30_000


@dataclass
class Visit:
    """A page with everything that went wrong on it."""

    page: Page
    url: str
    errors: list[str] = field(default_factory=list)
    off_host: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._on_request)
        self.page.on("websocket", self._on_socket)

    def open(self, path: str) -> Page:
        """Go to `path` and wait until its content is there."""
        self.page.goto(self.url + path)
        self.page.wait_for_selector("#page h1")
        return self.page

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(f"{message.type}: {message.text}")

    def _on_request(self, request: Request) -> None:
        self._check(request.url)

    def _on_socket(self, socket: WebSocket) -> None:
        self._check(socket.url)

    def _check(self, url: str) -> None:
        place = urlparse(url)
        if place.scheme not in ("data", "blob") and place.netloc != urlparse(self.url).netloc:
            self.off_host.append(url)


@contextmanager
def checked_visit(browser: Browser, url: str) -> Iterator[Visit]:
    """A fresh light page of 1280 px; the test fails on any console error and on any request off the host."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    visit = Visit(context.new_page(), url)
    yield visit
    context.close()
    assert visit.errors == []
    assert visit.off_host == []
