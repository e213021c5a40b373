"""The agent's source of metrics of the connected training processes. Series end with their process."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from stepscope.agent.training_link.server import TrainingServer
from stepscope.agent.training_link.tenancy import within_series_budget
from stepscope.core.documents.node import RunVerdict, TrainingRank, run_verdicts
from stepscope.core.metrics.agent import LINK, TRAINING
from stepscope.core.metrics.readings import Collection, Labels, Reading, labels_of, with_labels
from stepscope.core.vocabulary import Cause

_log = logging.getLogger(__name__)

DEFAULT_SERIES_OF_USER = 1000
_MAX_WARNED = 256
_MAX_NAMES = 16
"""Phases, and figures, that are exported of one process: their names are free."""
_MAX_MESH = 200
_MILLI = 1e-3


class TrainingSource:
    """The agent's source of metrics of the connected training processes.

    Args:
        series_of_user: of all processes of one user together.
    """

    def __init__(
        self,
        server: TrainingServer,
        *,
        series_of_user: int = DEFAULT_SERIES_OF_USER,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._server = server
        self._series_of_user = series_of_user
        self._wall_clock_ns = wall_clock_ns
        self._warned: set[int | None] = set()

    def collect(self) -> Collection:
        if self._server.why_closed is not None:
            return Collection((), (self._server.why_closed,))
        now_ns, ranks = self._wall_clock_ns(), self._server.ranks()
        of_users: dict[int | None, list[tuple[Sequence[Reading], Sequence[Reading]]]] = defaultdict(list)
        for rank in ranks:
            of_users[rank.uid].append((training_rank_readings(rank, now_ns), _own_readings(rank, now_ns)))
        for one in run_verdicts(ranks):
            of_users[one.uid].append((_verdict_readings(one, now_ns), ()))
        readings, left_out = within_series_budget(of_users, self._series_of_user)
        for uid, count in left_out.items():
            readings.append(Reading(LINK + "series_left_out", float(count), labels_of(uid=_uid_text(uid)), now_ns))
            if uid not in self._warned and len(self._warned) < _MAX_WARNED:
                self._warned.add(uid)
                _log.warning("%d series of training of user %s are left out: beyond its budget", count, uid)
        if self._server.num_left_counters:
            readings.append(Reading(LINK + "counters_left_total", float(self._server.num_left_counters), (), now_ns))
        readings.append(Reading(LINK + "connections", float(len(ranks)), (), now_ns))
        readings += [
            Reading(LINK + "refused_total", float(count), labels_of(reason=reason), now_ns)
            for reason, count in sorted(self._server.refused().items())
        ]
        return Collection(tuple(readings))


def training_rank_readings(rank: TrainingRank, now_ns: int) -> Sequence[Reading]:
    """Readings that each connected training process has."""
    hello, heartbeat = rank.hello, rank.heartbeat
    labels = _labels(rank)
    mesh = ",".join(f"{name}={size}" for name, size in list(hello.mesh.items())[:_MAX_NAMES])[:_MAX_MESH]
    info = with_labels(
        labels,
        pid="" if rank.pid is None else rank.pid,
        uuid=hello.gpu_uuid or "",
        local_rank=hello.local_rank,
        world_size=hello.world_size,
        mesh=mesh,
        uid=_uid_text(rank.uid),
    )
    readings = [Reading(TRAINING + "info", 1.0, info, now_ns)]

    def add(name: str, value: float | None, scale: float = 1.0) -> None:
        if value is not None:
            readings.append(Reading(TRAINING + name, value * scale, labels, now_ns))

    add("heartbeat_age_seconds", rank.heartbeat_age_ms, _MILLI)
    add("step_age_seconds", rank.step_age_ms, _MILLI)
    if heartbeat is not None:
        add("step", heartbeat.index)
        add("step_seconds", heartbeat.ms, _MILLI)
        add("data_wait_seconds", heartbeat.data_wait_ms, _MILLI)
        add("capturing", float(heartbeat.state in ("warmup", "active")))
    return readings


_CAUSES = frozenset(Cause)
_OTHER_CAUSE = "other"


def _verdict_readings(one: RunVerdict, now_ns: int) -> Sequence[Reading]:
    """Readings of the live verdict of a run; without a share where it is not known whether there is a bottleneck."""
    verdict, run = one.verdict, labels_of(run=one.verdict.run)
    age = Reading(TRAINING + "verdict_age_seconds", max(now_ns - verdict.time_ns, 0) / 1e9, run, now_ns)
    share = verdict.share if verdict.bottleneck else 0.0
    if verdict.bottleneck is None or share is None:
        return [age]
    cause = verdict.cause if verdict.cause in _CAUSES else _OTHER_CAUSE  # a text of the process's own choice
    return [age, Reading(TRAINING + "bottleneck_ratio", share, with_labels(run, cause=cause), now_ns)]


def _own_readings(rank: TrainingRank, now_ns: int) -> Sequence[Reading]:
    """Readings of a training process whose number is its own choice: phases and figures."""
    heartbeat, labels = rank.heartbeat, _labels(rank)
    if heartbeat is None:
        return ()
    phases = [
        Reading(TRAINING + "phase_seconds", milliseconds * _MILLI, with_labels(labels, phase=phase), now_ns)
        for phase, milliseconds in _first(heartbeat.phases_ms)
    ]
    figures = [
        Reading(TRAINING + "figure", value, with_labels(labels, figure=figure), now_ns)
        for figure, value in _first(heartbeat.figures)
    ]
    return [*phases, *figures]


def _labels(rank: TrainingRank) -> Labels:
    return labels_of(run=rank.hello.run, rank=rank.hello.rank)


def _uid_text(uid: int | None) -> str:
    return "" if uid is None else str(uid)


def _first(numbers: Mapping[str, float]) -> list[tuple[str, float]]:
    """The first few by name, so that they are the same every time."""
    return sorted(numbers.items())[:_MAX_NAMES]
