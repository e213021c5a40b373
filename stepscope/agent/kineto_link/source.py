"""What is told of the processes that ask for traces to take?"""

from __future__ import annotations

import time
from collections.abc import Callable

from stepscope.agent.kineto_link.backend import KinetoBackend
from stepscope.core.readings import Collection, Finding, Reading, labels_of
from stepscope.core.training_metrics import KINETO


class KinetoSource:
    """The processes that ask the agent.

    Args:
        backend: who answers them.
    """

    def __init__(self, backend: KinetoBackend, *, wall_clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._backend = backend
        self._wall_clock_ns = wall_clock_ns

    def collect(self) -> Collection:
        """How many they are, and who cannot be answered."""
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
