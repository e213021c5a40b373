"""Which request does a process get at its next poll? Laid out by the desk, handed over by the server."""

from __future__ import annotations

import os
import threading

from stepscope.collectors.kineto_daemon.registry import KinetoProcess
from stepscope.collectors.kineto_daemon.targets import key_of


class Orders:
    """Requests laid out for processes. Safe between threads; the lock is held for a look into a dict."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: dict[str, tuple[str, str | None]] = {}
        self._delivered: dict[str, int] = {}

    def lay_out(self, key: str, text: str, *, unless: str | None) -> None:
        """Hand `text` to the process at its next poll at which it would take it, once.

        Args:
            key: of the process.
            text: the request.
            unless: a file in memory or on a local disk whose existence says that the request was fulfilled meanwhile.
        """
        with self._lock:
            self._texts[key] = (text, unless)

    def withdraw(self, key: str) -> None:
        """Hand nothing over any more, and forget what was."""
        with self._lock:
            self._texts.pop(key, None)
            self._delivered.pop(key, None)

    def delivered(self, key: str) -> int | None:
        """At which of its polls the process last got a request; None before, and after it was withdrawn."""
        with self._lock:
            return self._delivered.get(key)

    def take(self, process: KinetoProcess) -> str:
        """The text for the poll that the process has just made; empty for none."""
        if not process.accepts:
            return ""
        key = key_of(process)
        with self._lock:
            text, unless = self._texts.pop(key, ("", None))
            if not text or (unless is not None and os.path.lexists(unless)):
                return ""
            self._delivered[key] = process.num_polls
        return text
