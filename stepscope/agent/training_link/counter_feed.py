"""Feed of counters to training processes: every 10 s the samples of its own GPUs and host, to each that wants them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from math import inf

from stepscope.agent.polling import SourceState
from stepscope.agent.training_link.connection import TrainingPeer, start_ticks_of, uid_of_process
from stepscope.agent.training_link.counter_history import CounterHistory, bounded_line
from stepscope.agent.training_link.server import TrainingServer
from stepscope.collectors.host.collector import ProcessCollector
from stepscope.core.metrics.readings import PROCESS
from stepscope.core.process import WorkerThread
from stepscope.core.protocol.counters import COUNTERS_SECONDS

_log = logging.getLogger(__name__)

_IDLE_SECONDS = 2.0
"""Between looks for a process that wants counters. Without one, nothing is kept."""
_PROCESS_SECONDS = 5.0
"""Between readings of processes that are on no GPU."""
_MAX_PROCESSES = 64


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
        self._pids: list[int] = []
        self._processes = ProcessCollector(lambda: self._pids, wall_clock_ns=wall_clock_ns)
        self._processes_at = -inf
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
        now, states = time.monotonic(), self._states()
        states = [*states, *self._states_of_processes(takers, states, now)]
        now_ns = self._wall_clock_ns()
        self._history.observe(states, now_ns)
        self._sent = {key: self._sent.get(key, (now, None)) for key, _ in takers}
        for key, peer in takers:
            sent, sent_ns = self._sent[key]
            if now - sent >= self._seconds:
                self._sent[key] = now, now_ns
                message = self._history.message(self._pid(peer), sent_ns, now_ns, uid=peer.uid, uid_of=self._uid_of)
                self._server.send_counters(key, bounded_line(message))
        return self._interval

    def _states_of_processes(
        self, takers: Sequence[tuple[str, TrainingPeer]], states: Sequence[SourceState], now: float
    ) -> list[SourceState]:
        """Readings of processes that no source reads: they are on no GPU, or the driver does not list them."""
        if now - self._processes_at < _PROCESS_SECONDS:
            return []
        self._processes_at = now
        known = {
            dict(reading.labels).get("pid")
            for state in states
            for reading in state.collection.readings
            if reading.metric == PROCESS + "info"
        }
        pids = {pid for _, peer in takers if (pid := self._pid(peer)) is not None and str(pid) not in known}
        if not pids:
            return []
        self._pids = sorted(pids)[:_MAX_PROCESSES]
        return [SourceState("training_processes", self._processes.collect(), self._wall_clock_ns())]

    def _pid(self, peer: TrainingPeer) -> int | None:
        """The process at the other end; None where another has got its id since it connected."""
        if peer.pid is None or peer.start_ticks is None or self._start_ticks(peer.pid) != peer.start_ticks:
            return None
        return peer.pid
