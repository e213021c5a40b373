"""Web app for a test: on a free local port, in a thread, for the duration of the test."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from stepscope.dashboard.app import create_app
from stepscope.dashboard.queries import FleetQueries
from stepscope.dashboard.security import LOOPBACK_NAMES
from stepscope.store.runs import RunStore


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server sent."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


@contextmanager
def live_server(root: Path, fleet: FleetQueries | None = None) -> Iterator[str]:
    """Serve the runs under `root`; the URL without a trailing slash."""
    app = create_app(RunStore(root), allowed_hosts=LOOPBACK_NAMES, fleet=fleet)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none", timeout_graceful_shutdown=2))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            deadline = time.monotonic() + 20
            while not server.started:
                assert thread.is_alive(), "the server died on its way up"
                assert time.monotonic() < deadline, "the server does not come up"
                time.sleep(0.02)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=20)
            if fleet is not None:
                fleet.close()


def get(url: str, *, method: str = "GET", **headers: str) -> Answer:
    """Ask without a proxy; an HTTP error is an answer, not an exception."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, headers=headers, method=method)
    try:
        with opener.open(request, timeout=20) as reply:
            return Answer(reply.status, _lower(reply.headers), reply.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, _lower(error.headers), error.read())


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
