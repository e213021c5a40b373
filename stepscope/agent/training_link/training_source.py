"""Metrics of the connected training processes; the series of a process end with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from stepscope.agent.training_link.server import TrainingServer
from stepscope.core.documents.node import TrainingRank
from stepscope.core.metrics.agent import LINK, TRAINING
from stepscope.core.metrics.readings import Collection, Labels, Reading, labels_of, with_labels

_MAX_NAMES = 16
"""Phases, and figures, that are exported of one process: their names are free."""
_MILLI = 1e-3


class TrainingSource:
    """Metrics of the connected processes.

    Args:
        server: that they are connected to.
    """

    def __init__(self, server: TrainingServer, *, wall_clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._server = server
        self._wall_clock_ns = wall_clock_ns

    def collect(self) -> Collection:
        """Values of the newest messages."""
        if self._server.why_closed is not None:
            return Collection((), (self._server.why_closed,))
        now_ns, ranks = self._wall_clock_ns(), self._server.ranks()
        readings = [reading for rank in ranks for reading in rank_readings(rank, now_ns)]
        readings.append(Reading(LINK + "connections", float(len(ranks)), (), now_ns))
        readings += [
            Reading(LINK + "refused_total", float(count), labels_of(reason=reason), now_ns)
            for reason, count in sorted(self._server.refused().items())
        ]
        return Collection(tuple(readings))


def rank_readings(rank: TrainingRank, now_ns: int) -> Sequence[Reading]:
    """Values of one process."""
    hello, heartbeat = rank.hello, rank.heartbeat
    labels = labels_of(run=hello.run, rank=hello.rank)
    mesh = ",".join(f"{name}={size}" for name, size in list(hello.mesh.items())[:_MAX_NAMES])
    info = with_labels(
        labels,
        pid="" if rank.pid is None else rank.pid,
        uuid=hello.gpu_uuid or "",
        local_rank=hello.local_rank,
        world_size=hello.world_size,
        mesh=mesh,
    )
    readings = [Reading(TRAINING + "info", 1.0, info, now_ns)]

    def add(name: str, value: float | None, scale: float = 1.0, of: Labels = labels) -> None:
        if value is not None:
            readings.append(Reading(TRAINING + name, value * scale, of, now_ns))

    add("heartbeat_age_seconds", rank.heartbeat_age_ms, _MILLI)
    add("step_age_seconds", rank.step_age_ms, _MILLI)
    if heartbeat is not None:
        add("step", heartbeat.index)
        add("step_seconds", heartbeat.ms, _MILLI)
        add("data_wait_seconds", heartbeat.data_wait_ms, _MILLI)
        for phase, milliseconds in _first(heartbeat.phases_ms):
            add("phase_seconds", milliseconds, _MILLI, with_labels(labels, phase=phase))
        for figure, value in _first(heartbeat.figures):
            add("figure", value, of=with_labels(labels, figure=figure))
        add("capturing", float(heartbeat.state in ("warmup", "active")))
    return readings


def _first(numbers: Mapping[str, float]) -> list[tuple[str, float]]:
    """The first few by name, so that they are the same every time."""
    return sorted(numbers.items())[:_MAX_NAMES]
