"""Counters of a run from the metric history, for a run directory that has none of its own.

A rank's GPU is found by its UUID, which its place file says (ranks/rank{r}.json) and else the agent that its process
was connected to (`stepscope_training_info`); the GPU's node is the one whose agent has that UUID. What only the process
itself gets of its agent is not there: its CPU time, its cgroup, other processes on its GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stepscope.core.documents.run_counters import RankCounters
from stepscope.core.documents.run_directory import RankPlace, RankSteps, RunManifest
from stepscope.core.metrics.agent import TRAINING
from stepscope.core.metrics.gpu import THROTTLE_REASONS
from stepscope.core.metrics.readings import GPU, HOST
from stepscope.core.protocol.counters import GPU_COUNTERS, Counters, GpuCounters, HostCounters, Samples
from stepscope.core.text.numbers import counted
from stepscope.core.vocabulary import Notice
from stepscope.store.counter_records import MAX_RANKS_OF_COUNTERS
from stepscope.store.history.questions import (
    GroupBy,
    Labels,
    MetricHistory,
    Question,
    Statistic,
    TimeRange,
    Where,
)
from stepscope.store.rank_places import read_rank_places

_STEP_NS, _TOTAL_STEP_NS = 15 * 10**9, 60 * 10**9
"""Of gauges the usual interval of a recorder; of totals some of them, as a rate needs two samples in a step. A long run
has longer steps."""
_MAX_STEPS = 4000
_MAX_NAMED = 512
"""GPUs of one question: more are asked for in several."""
_HOST_TOTALS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    **{
        f"pressure_{resource}_{share}_seconds_total": (
            "pressure_seconds_total",
            {"resource": resource, "share": share},
        )
        for resource in ("cpu", "io", "memory")
        for share in ("some", "full")
    },
    "cpu_iowait_seconds_total": ("cpu_seconds_total", {"mode": "iowait"}),
    "infiniband_receive_bytes_total": ("infiniband_receive_bytes_total", {}),
    "infiniband_transmit_bytes_total": ("infiniband_transmit_bytes_total", {}),
}
"""Counters of a host by their name in a run: metric without its prefix, and which of its series."""


def counters_of_history(
    history: MetricHistory, run_directory: Path, manifest: RunManifest, steps: Sequence[RankSteps]
) -> tuple[list[RankCounters], list[Notice]]:
    """Counters of the ranks of a run while its steps lasted, of at most MAX_RANKS_OF_COUNTERS ranks.

    Returns:
        The ranks whose GPU the history has, and why others have no counters.

    Raises:
        UsageError, UnreachableError, DataError: as the history's methods.
    """
    places, notices = read_rank_places(run_directory)
    ends = [end_ns for rank in steps for step in rank.steps for end_ns in (step.start_ns, step.end_ns)]
    if not ends:
        return [], notices
    start_ns, end_ns = min(ends), max(ends)
    reader = _Reader(history, start_ns, end_ns)
    gpus = reader.gpus_of_ranks(manifest, places)
    if not gpus:
        why = "neither ranks/ nor a connection to an agent names the GPUs of its ranks"
        return [], [*notices, Notice("not_in_history", f"{run_directory} is not found in the metric history: {why}")]
    chosen = dict(list(gpus.items())[:: -(-len(gpus) // MAX_RANKS_OF_COUNTERS)])
    of_gpu = reader.gpu_counters(sorted(set(chosen.values())))
    of_host = reader.host_counters(sorted({instance for instance, _ in of_gpu.values()}))
    ranks = []
    for rank, uuid in chosen.items():
        if uuid in of_gpu:
            instance, counters = of_gpu[uuid]
            ranks.append(RankCounters(rank, [Counters(end_ns, None, (counters,), of_host.get(instance))]))
    if len(ranks) < len(chosen):
        missing = counted(len(chosen) - len(ranks), "rank's GPU has", "ranks' GPUs have")
        notices.append(Notice("not_in_history", f"{missing} no samples in the metric history at the time of the run"))
    return ranks, notices


class _Reader:
    """Reads one span of the history."""

    def __init__(self, history: MetricHistory, start_ns: int, end_ns: int) -> None:
        self._history = history
        self._gauges, self._totals = (_steps(start_ns, end_ns, step_ns) for step_ns in (_STEP_NS, _TOTAL_STEP_NS))
        self._known = {metric.name for metric in history.metrics()}

    def gpus_of_ranks(self, manifest: RunManifest, places: Sequence[RankPlace]) -> dict[int, str]:
        """UUID of each rank's GPU, as far as it is known, by rising rank."""
        uuids = {place.rank: place.gpu_uuid for place in places if place.gpu_uuid is not None}
        if len(uuids) < manifest.world_size and _TRAINING_INFO in self._known:
            by = (GroupBy.RANK, GroupBy.GPU)
            question = Question(_TRAINING_INFO, by, Statistic.MAX, {"run": manifest.run})
            for group in self._history.range(question, self._totals).groups:
                labels = dict(group)
                if labels.get("rank", "").isdecimal() and labels.get("uuid"):
                    uuids.setdefault(int(labels["rank"]), labels["uuid"])
        return dict(sorted(uuids.items()))

    def gpu_counters(self, uuids: Sequence[str]) -> dict[str, tuple[str, GpuCounters]]:
        """Of each GPU that has samples: address of its agent, and its counters."""
        values: dict[tuple[str, str], dict[str, Samples]] = {}
        for name in (name for name in GPU_COUNTERS if not name.endswith("_total")):
            for key, samples in self._of_gpus(GPU + name, uuids).items():
                values.setdefault(key, {})[name] = samples
        reasons: dict[tuple[str, str], dict[str, Samples]] = {}
        for _, reason in THROTTLE_REASONS:
            for key, samples in self._of_gpus(GPU + "throttle_reason", uuids, {"reason": reason}).items():
                reasons.setdefault(key, {})[reason] = samples
        times_ns = tuple(self._gauges.step_ends().tolist())
        counters = {}
        for (instance, uuid), columns in values.items():
            known = [any(column[step] is not None for column in columns.values()) for step in range(len(times_ns))]
            held = {name: _zero_where(known, column) for name, column in reasons.get((instance, uuid), {}).items()}
            is_told = GPU + "throttle_reason" in self._known
            counters[uuid] = instance, GpuCounters(uuid, times_ns, columns, held if is_told else None)
        return counters

    def host_counters(self, instances: Sequence[str]) -> dict[str, HostCounters]:
        """Counters of each host that has samples, by the address of its agent."""
        values: dict[str, dict[str, Samples]] = {}
        for name, (metric, where) in _HOST_TOTALS.items():
            for key, samples in self._ask(HOST + metric, GroupBy.NODE, {**where, "instance": instances}).items():
                values.setdefault(dict(key)["instance"], {})[name] = samples
        times_ns = tuple(self._totals.step_ends().tolist())
        return {instance: HostCounters(times_ns, columns) for instance, columns in values.items()}

    def _of_gpus(
        self, metric: str, uuids: Sequence[str], where: Mapping[str, str] | None = None
    ) -> dict[tuple[str, str], Samples]:
        samples: dict[tuple[str, str], Samples] = {}
        for first in range(0, len(uuids), _MAX_NAMED):
            named = {**(where or {}), "uuid": uuids[first : first + _MAX_NAMED]}
            for group, values in self._ask(metric, GroupBy.GPU, named).items():
                labels = dict(group)
                samples[labels["instance"], labels["uuid"]] = values
        return samples

    def _ask(self, metric: str, by: GroupBy, where: Where) -> dict[Labels, Samples]:
        """A column of each group; of a counter its total from the start of the span on."""
        if metric not in self._known:
            return {}
        is_total = metric.endswith("_total")
        statistic = Statistic.SUM if is_total else Statistic.MEAN
        span = self._totals if is_total else self._gauges
        answer = self._history.range(Question(metric, (by,), statistic, where), span)
        rows = totals_of_rates(answer.values, span.step_ns / 1e9) if is_total else answer.values
        return {
            group: tuple(None if np.isnan(value) else float(value) for value in row)
            for group, row in zip(answer.groups, rows, strict=True)
        }


_TRAINING_INFO = TRAINING + "info"


def _steps(start_ns: int, end_ns: int, step_ns: int) -> TimeRange:
    """The span in steps that cover all of it, of at least `step_ns`."""
    step_ns *= max(1, -(-(end_ns - start_ns) // (step_ns * _MAX_STEPS)))
    return TimeRange.covering(start_ns - step_ns, end_ns + step_ns, step_ns)


def totals_of_rates(rates: NDArray[np.float64], step_seconds: float) -> NDArray[np.float64]:
    """A counter that has these rates in steps; where a rate is unknown it falls, as one does that began anew.

    Args:
        rates: per second, NaN where unknown; shape (..., steps).

    Returns:
        Its value at the end of each step; shape (..., steps).
    """
    return np.cumsum(np.where(np.isnan(rates), -1.0, rates * step_seconds), axis=-1)


def _zero_where(known: Sequence[bool], samples: Samples) -> Samples:
    """Samples of a state whose series is there only while it holds: 0 where the page was read and did not have it."""
    return tuple(0.0 if value is None and is_known else value for is_known, value in zip(known, samples, strict=True))
