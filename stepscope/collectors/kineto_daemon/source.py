"""Metrics of the processes that Kineto's daemon protocol serves, and the retry while another daemon has the address."""

from __future__ import annotations

import time
from collections.abc import Callable

from stepscope.collectors.kineto_daemon.backend import KinetoBackend
from stepscope.core.metrics.agent import KINETO
from stepscope.core.metrics.readings import Collection, Finding, Reading, labels_of

_LOOK_SECONDS = 30.0
"""Who has the address may end: an agent that is replaced, a dynolog that is stopped."""
_FREE_LOOKS = 5
"""In a row before it is taken: a dynolog that is started anew, or upgraded, is back by then."""


class KinetoSource:
    """The processes that ask the agent.

    Args:
        backend: who answers them; asked to try again once the address it could not have is free for two minutes.
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
        self._look_at, self._num_free = clock() + _LOOK_SECONDS, 0

    def collect(self) -> Collection:
        """How many they are, and who cannot be answered."""
        if self._backend.why_closed is not None and self._clock() >= self._look_at:
            self._look_at = self._clock() + _LOOK_SECONDS
            self._num_free = self._num_free + 1 if self._backend.server.is_free() else 0
            if self._num_free >= _FREE_LOOKS:
                self._backend.try_again()
        if self._backend.why_closed is not None:
            return Collection((), (self._backend.why_closed,))
        now_ns, server = self._wall_clock_ns(), self._backend.server
        readings = (
            Reading(KINETO + "processes", float(len(server.processes())), (), now_ns),
            Reading(KINETO + "rejected_total", float(server.num_rejected), (), now_ns),
        )
        findings = tuple(
            Finding("kineto_folder", server.about_odd_place(folder), labels_of(folder=folder), now_ns)
            for folder in server.odd_places()
        )
        return Collection(readings, (), findings)
