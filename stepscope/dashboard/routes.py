"""Which page answers which path?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

import anyio.to_thread
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stepscope.dashboard.pages import run, runs
from stepscope.dashboard.pages.states import not_found
from stepscope.store.runs import RunStore, UnknownRunError

_NOT_PAGES = ("/_dash-", "/_favicon.ico", "/assets/", "/api/", "/healthz", "/readyz", "/metrics")
"""Paths that begin so are answered by Dash itself or by the API."""


@dataclass(frozen=True, slots=True)
class Page:
    """What the shell shows for a path: Dash components and the browser's title."""

    body: Any
    breadcrumb: Any
    title: str


async def render(store: RunStore, path: str) -> Page:
    """The page at `path`, made on a worker thread: Dash calls its callbacks on the server's event loop."""
    return await anyio.to_thread.run_sync(_render, store, path)


def run_of(path: str) -> str | None:
    """The run that `path`, percent-encoded as in the URL, shows: its id, '' for the list of runs, None for no page."""
    parts = path.strip("/").split("/")
    if parts == [""]:
        return ""
    return unquote(parts[1]) if len(parts) == 2 and parts[0] == "runs" and parts[1] else None


class PageMiddleware:
    """Lets Dash's one HTML document answer every page, with an honest status: Dash's catch-all says 200 to any path."""

    def __init__(self, app: ASGIApp, *, store: RunStore) -> None:
        self._app = app
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] != "http" or scope["path"].startswith(_NOT_PAGES):
            await self._app(scope, receive, send)
            return
        status = await anyio.to_thread.run_sync(_status, self._store, _encoded_path(scope))

        async def send_with_status(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                message["status"] = status
            await send(message)

        await self._app({**scope, "path": "/", "raw_path": b"/"}, receive, send_with_status)


def _encoded_path(scope: Scope) -> str:
    """The path as the browser sent it; `scope["path"]` is decoded already and cannot be decoded once more."""
    raw: bytes | None = scope.get("raw_path")  # optional in ASGI
    return raw.decode("latin-1") if raw is not None else quote(scope["path"])


def _status(store: RunStore, path: str) -> int:
    run_id = run_of(path)
    if run_id:
        try:
            store.path_of(run_id)
        except UnknownRunError:
            return 404
    return 404 if run_id is None else 200


def _render(store: RunStore, path: str) -> Page:
    run_id = run_of(path)
    if run_id is None:
        return Page(not_found(f"There is no page at {unquote(path)}."), [], "Not found – stepscope")
    if not run_id:
        return Page(runs.make_page(store), [], "Runs – stepscope")
    return Page(run.make_page(store, run_id), run_id, f"{run_id} – stepscope")
