"""Feed of counters to training processes: every 10 s the samples of its own GPUs and host, to each that wants them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from stepscope.agent.polling import SourceState
from stepscope.agent.training_link.connection import TrainingPeer, start_ticks_of, uid_of_process
from stepscope.agent.training_link.counter_history import CounterHistory, bounded_line
from stepscope.agent.training_link.server import TrainingServer
from stepscope.core.process import WorkerThread
from stepscope.core.protocol.counters import COUNTERS_SECONDS

_log = logging.getLogger(__name__)

_IDLE_SECONDS = 2.0
"""Between looks for a process that wants counters. Without one, nothing is kept."""


class CounterFeed:
    """Feed of counters; a context manager, which works while it is open. Waits for no process.

    Args:
        interval: seconds from sample to sample.
    """

    def __init__(
        self,
        server: TrainingServer,
        states: Callable[[], Sequence[SourceState]],
        *,
        interval: float = 1.0,
        seconds: float = COUNTERS_SECONDS,
        wall_clock_ns: Callable[[], int] = time.time_ns,
        start_ticks: Callable[[int], int | None] = start_ticks_of,
        uid_of: Callable[[int], int | None] = uid_of_process,
    ) -> None:
        self._server, self._states = server, states
        self._interval, self._seconds = interval, seconds
        self._wall_clock_ns, self._start_ticks, self._uid_of = wall_clock_ns, start_ticks, uid_of
        self._history = CounterHistory()
        self._sent: dict[str, tuple[float, int | None]] = {}
        self._worker = WorkerThread(self._look, name="stepscope-counters", log=_log)

    def __enter__(self) -> CounterFeed:
        self._worker.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.__exit__()

    def _look(self) -> float:
        """Take a sample, and send to those whose time has come."""
        takers = self._server.counter_takers()
        if not takers:
            self._history, self._sent = CounterHistory(), {}
            return _IDLE_SECONDS
        now, now_ns = time.monotonic(), self._wall_clock_ns()
        self._history.observe(self._states(), now_ns)
        self._sent = {key: self._sent.get(key, (now, None)) for key, _ in takers}
        for key, peer in takers:
            sent, sent_ns = self._sent[key]
            if now - sent >= self._seconds:
                self._sent[key] = now, now_ns
                message = self._history.message(self._pid(peer), sent_ns, now_ns, uid=peer.uid, uid_of=self._uid_of)
                self._server.send_counters(key, bounded_line(message))
        return self._interval

    def _pid(self, peer: TrainingPeer) -> int | None:
        """The process at the other end; None where another has got its id since it connected."""
        if peer.pid is None or peer.start_ticks is None or self._start_ticks(peer.pid) != peer.start_ticks:
            return None
        return peer.pid
