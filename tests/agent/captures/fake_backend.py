"""Processes that can be captured, and do what a test wants."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from stepscope.agent.captures.backend import CaptureTarget, TargetAnswer
from stepscope.core.metrics.readings import Missing
from stepscope.core.protocol.messages import Answer, AnswerState, CaptureRequest


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
    says: dict[str, list[Answer]] = field(default_factory=dict)
    name: str = "fake"
    why_closed: Missing | None = None
    asked: list[tuple[CaptureRequest, tuple[str, ...]]] = field(default_factory=list)
    cancelled: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    _news: list[TargetAnswer] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def targets(self) -> Sequence[CaptureTarget]:
        return list(self.known)

    def request(self, capture: CaptureRequest, keys: Collection[str]) -> None:
        here = {one.key for one in self.known}
        self.asked.append((capture, tuple(key for key in keys if key in here)))
        for key in keys:
            for answer in self.says.get(key, ()) if key in here else ():
                self.answer(key, answer, capture.id)

    def cancel(self, capture_id: str, keys: Collection[str]) -> None:
        self.cancelled.append((capture_id, tuple(keys)))
        for key in keys:
            self.answer(key, Answer(capture_id, AnswerState.CANCELLED, "as asked"))

    def answers(self) -> Sequence[TargetAnswer]:
        with self._lock:
            news, self._news = self._news, []
        return news

    def answer(self, key: str, answer: Answer, capture_id: str | None = None) -> None:
        """A process says this."""
        told = {name: getattr(answer, name) for name in Answer.__slots__}
        with self._lock:
            self._news.append(TargetAnswer(key, Answer(**(told | {"id": capture_id or answer.id}))))
