"""Source of fleet classes: classifies each GPU and job by the last minute of its samples, every few seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from stepscope.agent.fleet.history import GpuHistory, HostHistory, gpu_values_by_device
from stepscope.agent.polling import SourceState
from stepscope.analyzer.fleet import classify_gpu, classify_job
from stepscope.core.documents.jobs import FLEET_CAUSES, Assignment, FleetClass, FleetReport, Job, JobClass, job_labels
from stepscope.core.hardware.devices import Device
from stepscope.core.metrics.agent import JOB
from stepscope.core.metrics.readings import GPU, Collection, Finding, Missing, MissingReason, Reading, with_labels
from stepscope.core.vocabulary import Cause

_log = logging.getLogger(__name__)

_WINDOW_SECONDS = 60.0
_EVERY_SECONDS = 10.0
"""Between two classes; samples are taken at each call."""
_MIN_SECONDS = 10.0
_SILENT_SECONDS = 15.0
"""Without a new sample for so long there is no class. GPUs wait up to 10 s for one that hangs; of a page that comes
every 30 s twice that time may pass."""
_GONE_SECONDS = 60.0
_LONGER_SECONDS = (300.0, 240.0, 180.0, 120.0)
_SURE_OF_A_HANG = 0.6
"""Confidence that is reached after some two minutes: peers that write a checkpoint may take as long."""
_SET_BACK_NS = 1_000_000_000
"""Clocks are set when a machine has started, sometimes by hours; for a while the sources still have readings of
before."""
_JOB_CAUSES = (*FLEET_CAUSES, Cause.STRAGGLER)


class FleetSource:
    """The agent's source of fleet classes: keeps minutes of samples and classifies the newest minute."""

    def __init__(
        self,
        states: Callable[[], Sequence[SourceState]],
        assignments: Callable[[], Sequence[Assignment]] = tuple,
        *,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._states, self._assignments = states, assignments
        self._wall_clock_ns = wall_clock_ns
        self._gpus: dict[Device, GpuHistory] = {}
        self._host = HostHistory()
        self._report = FleetReport()
        self._collection = Collection()
        self._classified_ns: int | None = None
        self._collected_ns = 0

    def collect(self) -> Collection:
        """Take a sample of each GPU, and classify it when that is due; in between the last classes are returned."""
        states, now_ns = self._states(), self._wall_clock_ns()
        if now_ns < self._collected_ns - _SET_BACK_NS:  # else nothing would be newer than what is kept, for as long
            self._gpus, self._host, self._classified_ns = {}, HostHistory(), None
        self._collected_ns = now_ns
        until_ns = now_ns + _SET_BACK_NS
        self._host.observe(states, until_ns)
        for device, values in gpu_values_by_device(states, until_ns).items():
            self._gpus.setdefault(device, GpuHistory()).add(values)
        for device, history in list(self._gpus.items()):
            if now_ns - history.newest_ns > _GONE_SECONDS * 1e9:
                del self._gpus[device]
        if self._classified_ns is None or now_ns - self._classified_ns >= _EVERY_SECONDS * 1e9:
            self._classified_ns = now_ns
            self._classify(now_ns)
        return self._collection

    def report(self) -> FleetReport:
        return self._report

    def _classify(self, now_ns: int) -> None:
        classes: dict[Device, FleetClass] = {}
        missing = []
        for device, history in self._gpus.items():
            found = self._class_of(device, history, now_ns)
            if isinstance(found, Missing):
                missing.append(found)
            else:
                classes[device] = found
        self._log_hangs(classes)
        self._report = FleetReport(classes, _job_classes(self._assignments(), classes))
        readings = [reading for device, one in classes.items() for reading in _readings(device, one, now_ns)]
        readings += [reading for job in self._report.jobs for reading in _job_readings(job, now_ns)]
        findings = tuple(
            Finding("hang", one.summary, device.labels(), now_ns) for device, one in classes.items() if _is_hanging(one)
        )
        self._collection = Collection(tuple(readings), tuple(missing), findings)

    def _class_of(self, device: Device, history: GpuHistory, now_ns: int) -> FleetClass | Missing:
        samples = history.last(_WINDOW_SECONDS)
        seconds = (samples[-1].time_ns - samples[0].time_ns) / 1e9 if samples else 0.0
        if seconds < 0.9 * _MIN_SECONDS:
            detail = f"it takes {_MIN_SECONDS:.0f} s of samples"
            return Missing(GPU + "class", device.labels(), MissingReason.NOT_YET, detail)
        silent = (now_ns - samples[-1].time_ns) / 1e9
        if silent > max(_SILENT_SECONDS, 2.0 * seconds / (len(samples) - 1)):
            detail = f"its newest sample is {silent:.0f} s old"
            return Missing(GPU + "class", device.labels(), MissingReason.TIMED_OUT, detail)
        host = self._host.use_of(device.uuid, _WINDOW_SECONDS)
        found = classify_gpu(samples, history.facts, host)
        if found.cause is Cause.HANG:  # the longer it hangs, the surer it is
            longer = (classify_gpu(history.last(seconds), history.facts, host) for seconds in _LONGER_SECONDS)
            return next((one for one in longer if one.cause is Cause.HANG), found)
        return found

    def _log_hangs(self, classes: Mapping[Device, FleetClass]) -> None:
        """Log once when the confidence that a GPU hangs is high enough."""
        for device, one in classes.items():
            before = self._report.devices.get(device)
            if _is_hanging(one) and not (before and _is_hanging(before)):
                _log.warning("%s seems to hang: %s", device, one.summary)


def _is_hanging(found: FleetClass) -> bool:
    return found.cause is Cause.HANG and found.confidence >= _SURE_OF_A_HANG


def _job_classes(assignments: Sequence[Assignment], classes: Mapping[Device, FleetClass]) -> tuple[JobClass, ...]:
    by_uuid = {device.uuid: device for device in classes if device.uuid}
    jobs: dict[tuple[str, str], tuple[Job, dict[Device, FleetClass]]] = {}
    for one in assignments:
        device = by_uuid.get(one.device.uuid)
        if device is not None:
            _, devices = jobs.setdefault(one.job.key, (one.job, {}))
            devices[device] = classes[device]
    return tuple(JobClass(job, tuple(devices), classify_job(list(devices.values()))) for job, devices in jobs.values())


def _readings(device: Device, found: FleetClass, now_ns: int) -> Iterator[Reading]:
    labels = device.labels()
    for cause in FLEET_CAUSES:
        yield Reading(GPU + "class", float(cause is found.cause), with_labels(labels, cause=cause.value), now_ns)
    yield Reading(GPU + "class_confidence_ratio", found.confidence, labels, now_ns)
    for spent, share in found.spent().items():
        yield Reading(GPU + "time_ratio", share, with_labels(labels, spent=spent), now_ns)


def _job_readings(one: JobClass, now_ns: int) -> Iterator[Reading]:
    labels = job_labels(one.job)
    for cause in _JOB_CAUSES:
        yield Reading(
            JOB + "class", float(cause is one.fleet_class.cause), with_labels(labels, cause=cause.value), now_ns
        )
    yield Reading(JOB + "class_confidence_ratio", one.fleet_class.confidence, labels, now_ns)
