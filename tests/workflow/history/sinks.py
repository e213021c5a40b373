"""A store in memory, and servers of pages that can be told how to behave."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from stepscope.core.metrics import MetricKind
from stepscope.store.history.questions import HistoryEvent, HistoryMetric
from stepscope.store.history.samples import SampleBlock


@dataclass(slots=True)
class MemoryStore:
    """What a recorder handed over and flushed.

    Attributes:
        is_full: it takes nothing more.
        num_lost: batches that it lost.
    """

    blocks: list[SampleBlock] = field(default_factory=list)
    events: dict[tuple[object, ...], HistoryEvent] = field(default_factory=dict)
    kinds: dict[str, MetricKind | None] = field(default_factory=dict)
    num_flushes: int = 0
    is_full: bool = False
    num_lost: int = 0

    def append(self, block: SampleBlock) -> None:
        self.blocks.append(block)

    def append_events(self, events: Iterable[HistoryEvent]) -> None:
        for event in events:
            self.events[event.kind, event.start_ns, event.labels, event.code] = event

    def flush(self) -> bool:
        self.num_flushes += 1
        return not self.is_full

    def describe(self, metrics: Iterable[HistoryMetric]) -> None:
        self.kinds.update((metric.name, metric.kind) for metric in metrics)

    def maintain(self) -> bool:
        return False

    def values(self, metric: str) -> dict[str, list[tuple[int, float]]]:
        """Times and values by instance."""
        found: dict[str, list[tuple[int, float]]] = {}
        for block in self.blocks:
            for entity, time_ns, value in zip(
                block.entity, block.times_ns, block.columns.get(metric, ()), strict=metric in block.columns
            ):
                instance = dict(block.entities[entity])["instance"]
                found.setdefault(instance, []).append((int(time_ns), float(value)))
        return {instance: sorted(values) for instance, values in found.items()}

    def codes(self) -> dict[str, list[str]]:
        """Codes of events by instance."""
        found: dict[str, list[str]] = {}
        for event in self.events.values():
            found.setdefault(dict(event.labels).get("instance", ""), []).append(event.code)
        return found


class PageServer:
    """Server on the loopback; `behave` answers each request."""

    def __init__(self, behave: Callable[[BaseHTTPRequestHandler], None]) -> None:
        outer = self
        self.num_open, self.most_open, self.num_requests = 0, 0, 0
        self.behave = behave
        self._lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with outer._lock:
                    outer.num_requests += 1
                    outer.num_open += 1
                    outer.most_open = max(outer.most_open, outer.num_open)
                try:
                    with suppress(OSError):
                        outer.behave(self)
                finally:
                    with outer._lock:
                        outer.num_open -= 1

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> PageServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def answer(content: bytes, status: int = 200) -> Callable[[BaseHTTPRequestHandler], None]:
    """Answers each request with this."""

    def behave(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    return behave


def hang(_: BaseHTTPRequestHandler) -> None:
    """Answers nothing for a long time."""
    time.sleep(20)


def drip(handler: BaseHTTPRequestHandler) -> None:
    """Answers a byte now and then."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    for _ in range(200):
        handler.wfile.write(b"a")
        time.sleep(0.1)


@contextmanager
def closed_port() -> Iterator[str]:
    """An address at which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"
