"""Source of fleet classes: classifies each GPU and job by the last minute of its samples, every few seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from stepscope.agent.fleet.history import GpuHistory, HostHistory, values_of_gpus
from stepscope.agent.polling import SourceState
from stepscope.analyzer.fleet import class_of_job, classify
from stepscope.core.documents.jobs import (
    FLEET_CAUSES,
    FleetClass,
    FleetReport,
    Job,
    JobClass,
    assignments_of,
    job_labels,
)
from stepscope.core.metrics.agent import JOB
from stepscope.core.metrics.gpu import GPU
from stepscope.core.metrics.readings import Collection, Finding, Labels, Missing, MissingReason, Reading, with_labels
from stepscope.core.vocabulary.causes import Cause

_log = logging.getLogger(__name__)

_WINDOW_SECONDS = 60.0
_EVERY_SECONDS = 10.0
"""From one class to the next; samples are taken at each call."""
_SHORTEST_SECONDS = 10.0
_SILENT_SECONDS = 15.0
"""Without a new sample there is no class. GPUs wait for one that hangs for up to 10 s; a page that comes every 30 s is
waited for as long again."""
_GONE_SECONDS = 60.0
_LONGER_SECONDS = (300.0, 240.0, 180.0, 120.0)
_SURE_OF_A_HANG = 0.6
"""Reached after some two minutes: peers that write a checkpoint are waited for as long as that."""
_SET_BACK_NS = 1_000_000_000
"""Clocks are set when a machine has started, sometimes by hours; the sources still tell for a while what they read
before."""
_JOB_CAUSES = (*FLEET_CAUSES, Cause.STRAGGLER)


class FleetSource:
    """Keeps minutes of samples, and says what the newest minute of them means. A `Collector`."""

    def __init__(
        self,
        states: Callable[[], Sequence[SourceState]],
        *,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """
        Args:
            states: all sources of the agent.
            wall_clock_ns: now, ns since the epoch.
        """
        self._states = states
        self._wall_clock_ns = wall_clock_ns
        self._gpus: dict[Labels, GpuHistory] = {}
        self._host = HostHistory()
        self._report = FleetReport()
        self._collection = Collection()
        self._told_ns: int | None = None
        self._looked_ns = 0

    def collect(self) -> Collection:
        """Take a sample of each GPU; what it says stays until the next look."""
        states, now_ns = self._states(), self._wall_clock_ns()
        if now_ns < self._looked_ns - _SET_BACK_NS:  # else nothing would be newer than what is kept, for as long
            self._gpus, self._host, self._told_ns = {}, HostHistory(), None
        self._looked_ns = now_ns
        until_ns = now_ns + _SET_BACK_NS
        self._host.observe(states, until_ns)
        for labels, told in values_of_gpus(states, until_ns).items():
            self._gpus.setdefault(labels, GpuHistory()).add(told)
        for labels, history in list(self._gpus.items()):
            if now_ns - history.newest_ns > _GONE_SECONDS * 1e9:
                del self._gpus[labels]
        if self._told_ns is None or now_ns - self._told_ns >= _EVERY_SECONDS * 1e9:
            self._told_ns = now_ns
            self._judge(states, now_ns)
        return self._collection

    def report(self) -> FleetReport:
        """The newest classes, with their evidence."""
        return self._report

    def _judge(self, states: Sequence[SourceState], now_ns: int) -> None:
        classes: dict[Labels, FleetClass] = {}
        missing = []
        for labels, history in self._gpus.items():
            told = self._class_of(labels, history, now_ns)
            if isinstance(told, Missing):
                missing.append(told)
            else:
                classes[labels] = told
        self._say(classes)
        self._report = FleetReport(classes, _job_classes(states, classes))
        readings = [reading for labels, told in classes.items() for reading in _readings(labels, told, now_ns)]
        readings += [reading for job in self._report.jobs for reading in _job_readings(job, now_ns)]
        findings = tuple(Finding("hang", told.summary, labels, now_ns) for labels, told in _hanging(classes))
        self._collection = Collection(tuple(readings), tuple(missing), findings)

    def _class_of(self, labels: Labels, history: GpuHistory, now_ns: int) -> FleetClass | Missing:
        samples = history.last(_WINDOW_SECONDS)
        seconds = (samples[-1].time_ns - samples[0].time_ns) / 1e9 if samples else 0.0
        if seconds < 0.9 * _SHORTEST_SECONDS:
            detail = f"it takes {_SHORTEST_SECONDS:.0f} s of samples"
            return Missing(GPU + "class", labels, MissingReason.NOT_YET, detail)
        silent = (now_ns - samples[-1].time_ns) / 1e9
        if silent > max(_SILENT_SECONDS, 2.0 * seconds / (len(samples) - 1)):
            detail = f"its newest sample is {silent:.0f} s old"
            return Missing(GPU + "class", labels, MissingReason.TIMED_OUT, detail)
        host = self._host.use_of(dict(labels).get("uuid", ""), _WINDOW_SECONDS)
        told = classify(samples, history.facts, host)
        if told.cause is Cause.HANG:  # the longer it hangs, the surer it is
            longer = (classify(history.last(seconds), history.facts, host) for seconds in _LONGER_SECONDS)
            return next((one for one in longer if one.cause is Cause.HANG), told)
        return told

    def _say(self, classes: dict[Labels, FleetClass]) -> None:
        """One line when it is sure enough that a GPU hangs."""
        before = {labels for labels, _ in _hanging(self._report.devices)}
        for labels, told in _hanging(classes):
            if labels not in before:
                about = dict(labels)
                _log.warning("GPU %s (%s) seems to hang: %s", about.get("gpu", "?"), about.get("uuid"), told.summary)


def _hanging(classes: Mapping[Labels, FleetClass]) -> list[tuple[Labels, FleetClass]]:
    return [
        (labels, told)
        for labels, told in classes.items()
        if told.cause is Cause.HANG and told.confidence >= _SURE_OF_A_HANG
    ]


def _job_classes(states: Sequence[SourceState], classes: dict[Labels, FleetClass]) -> tuple[JobClass, ...]:
    by_uuid = {dict(labels).get("uuid"): (labels, told) for labels, told in classes.items()}
    jobs: dict[tuple[str, str], tuple[Job, dict[Labels, FleetClass]]] = {}
    for state in states:
        for assignment in assignments_of(state.collection):
            found = by_uuid.get(assignment.uuid)
            if found is not None:
                _, devices = jobs.setdefault((assignment.job.kind, assignment.job.id), (assignment.job, {}))
                devices[found[0]] = found[1]
    return tuple(JobClass(job, tuple(devices), class_of_job(list(devices.values()))) for job, devices in jobs.values())


def _readings(labels: Labels, told: FleetClass, now_ns: int) -> Iterator[Reading]:
    for cause in FLEET_CAUSES:
        yield Reading(GPU + "class", float(cause is told.cause), with_labels(labels, cause=cause.value), now_ns)
    yield Reading(GPU + "class_confidence_ratio", told.confidence, labels, now_ns)
    for spent, share in told.spent().items():
        yield Reading(GPU + "time_ratio", share, with_labels(labels, spent=spent), now_ns)


def _job_readings(about: JobClass, now_ns: int) -> Iterator[Reading]:
    labels = job_labels(about.job)
    for cause in _JOB_CAUSES:
        yield Reading(JOB + "class", float(cause is about.told.cause), with_labels(labels, cause=cause.value), now_ns)
    yield Reading(JOB + "class_confidence_ratio", about.told.confidence, labels, now_ns)
