"""Metrics of processes that poll the Kineto daemon, and the retry while another daemon has its address."""

from __future__ import annotations

import time
from collections.abc import Callable

from stepscope.collectors.kineto_daemon.backend import KinetoBackend
from stepscope.core.metrics.agent import KINETO
from stepscope.core.metrics.readings import Collection, Finding, Reading, labels_of

_CHECK_SECONDS = 30.0
"""Between checks of the address: its owner may end, such as an agent that is replaced or a dynolog that is stopped."""
_NUM_FREE_CHECKS = 5
"""Checks in a row before it is taken: a dynolog that is restarted or upgraded is back by then."""


class KinetoSource:
    """Metrics of the processes that poll the agent.

    Args:
        backend: answers them; tries again once the address that it could not use is free for two minutes.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        backend: KinetoBackend,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._backend = backend
        self._clock, self._wall_clock_ns = clock, wall_clock_ns
        self._check_at, self._num_free = clock() + _CHECK_SECONDS, 0

    def collect(self) -> Collection:
        """Number of processes, and those that cannot be answered."""
        if self._backend.why_closed is not None and self._clock() >= self._check_at:
            self._check_at = self._clock() + _CHECK_SECONDS
            self._num_free = self._num_free + 1 if self._backend.server.is_free() else 0
            if self._num_free >= _NUM_FREE_CHECKS:
                self._backend.try_again()
        if self._backend.why_closed is not None:
            return Collection((), (self._backend.why_closed,))
        now_ns, server = self._wall_clock_ns(), self._backend.server
        readings = (
            Reading(KINETO + "processes", float(len(server.processes())), (), now_ns),
            Reading(KINETO + "rejected_total", float(server.num_rejected), (), now_ns),
        )
        findings = tuple(
            Finding("kineto_folder", server.foreign_folder_text(folder), labels_of(folder=folder), now_ns)
            for folder in server.foreign_folders()
        )
        return Collection(readings, (), findings)
