"""Fake capture backend: processes that behave as a test requests."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from stepscope.core.metrics.readings import Missing
from stepscope.core.protocol.captures import CaptureProgress, CaptureRequest, CaptureState, CaptureTarget, CaptureUpdate


def target(rank: int, key: str = "", **fields: object) -> CaptureTarget:
    """A process of run r, if nothing else is told."""
    told = {"backend": "fake", "pid": None, "uid": 0, "run": "r", "run_directory": "/runs/r", "world_size": 2} | fields
    return CaptureTarget(key or f"k{rank}", rank=rank, **told)  # type: ignore[arg-type]


@dataclass
class FakeBackend:
    """A back end whose processes are those that a test sets.

    Attributes:
        asked, cancelled: by capture, who was.
        says: what each process answers when it is asked.
    """

    known: list[CaptureTarget]
    says: dict[str, list[CaptureProgress]] = field(default_factory=dict)
    name: str = "fake"
    why_closed: Missing | None = None
    asked: list[tuple[CaptureRequest, tuple[str, ...]]] = field(default_factory=list)
    cancelled: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    _news: list[CaptureUpdate] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def targets(self) -> Sequence[CaptureTarget]:
        return list(self.known)

    def request(self, request: CaptureRequest, keys: Collection[str]) -> None:
        here = {one.key for one in self.known}
        self.asked.append((request, tuple(key for key in keys if key in here)))
        for key in keys:
            for answer in self.says.get(key, ()) if key in here else ():
                self.answer(key, answer, request.id)

    def cancel(self, capture_id: str, keys: Collection[str]) -> None:
        self.cancelled.append((capture_id, tuple(keys)))
        for key in keys:
            self.answer(key, CaptureProgress(CaptureState.CANCELLED, "as asked"), capture_id)

    def updates(self) -> Sequence[CaptureUpdate]:
        with self._lock:
            news, self._news = self._news, []
        return news

    def answer(self, key: str, progress: CaptureProgress, capture_id: str) -> None:
        """A process says this."""
        with self._lock:
            self._news.append(CaptureUpdate(capture_id, key, progress))
