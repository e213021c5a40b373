"""What is told of the processes that ask for traces to take?"""

from __future__ import annotations

import time
from collections.abc import Callable

from stepscope.agent.kineto_link.backend import KinetoBackend
from stepscope.core.readings import Collection, Finding, Reading, labels_of
from stepscope.core.training_metrics import KINETO

_AGAIN_SECONDS = 30.0
"""Who has the address may end: an agent that is replaced, a dynolog that is stopped."""


class KinetoSource:
    """The processes that ask the agent.

    Args:
        backend: who answers them; asked to try again where it could not.
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
        self._again_at = clock() + _AGAIN_SECONDS

    def collect(self) -> Collection:
        """How many they are, and who cannot be answered."""
        if self._backend.why_closed is not None and self._clock() >= self._again_at:
            self._again_at = self._clock() + _AGAIN_SECONDS
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
