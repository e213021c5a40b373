"""Readings of collectors, missing values with their reason, and their JSON between processes.

Unknown is a `Missing` with its reason, never 0 or NaN. Labels are sorted pairs, so that equal labels compare equal and
can be keys. The collections of a stream mostly have the same metrics and labels; this shape is sent only when it
changes, and later messages carry the values alone.

    {"shape": {"labels": [...], "readings": [[metric, label set]], "missing": [[metric, label set, reason, detail]]},
     "values": [...], "times": ns, or one for each value, "findings": [[code, message, labels, ns]]}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from math import isfinite
from sys import intern
from typing import Any, Protocol

GPU, HOST = "stepscope_gpu_", "stepscope_host_"
CGROUP, PROCESS = "stepscope_cgroup_", "stepscope_process_"
"""Prefixes of metric names."""

Labels = tuple[tuple[str, str], ...]
"""Pairs of label name and value, sorted."""

GPU_LABELS = ("gpu", "uuid", "gpu_instance", "compute_instance", "mig_profile")
"""Labels that identify the GPU of a reading: NVML's index, the UUID (of the MIG instance for its readings), and for MIG
instances NVML's ids and the profile ("1g.10gb"). Join on `uuid`: NVML's index is neither CUDA's nor the minor number
of /dev (PrincetonUniversity/jobstats#34)."""


def labels_of(**values: str | int) -> Labels:
    """Labels of a metric's reading from keywords, sorted by name."""
    return tuple(sorted((name, str(value)) for name, value in values.items()))


def with_labels(labels: Labels, **values: str | int) -> Labels:
    """Labels of a metric's reading with more added or replaced, sorted."""
    return tuple(sorted({**dict(labels), **{name: str(value) for name, value in values.items()}}.items()))


def read_labels(pairs: Any) -> Labels:
    """Labels of a metric's reading from JSON, a list of pairs.

    Raises:
        TypeError, ValueError: it is something else.
    """
    return tuple((intern(str(name)), intern(str(value))) for name, value in pairs)


class MissingReason(StrEnum):
    """Why the value of a metric is missing."""

    NOT_SUPPORTED = "not_supported"
    """This device, driver or library does not have it. Nothing to do; a newer driver may have it."""
    NO_PERMISSION = "no_permission"
    """It exists, but access is refused. `stepscope agent check` says what to grant."""
    TAKEN = "taken"
    """Another process has an exclusive resource, such as an address. Stop it, or leave this source off."""
    NOT_INSTALLED = "not_installed"
    """No library, no driver, or no kernel module. Install it where it is wanted."""
    VERSION_MISMATCH = "version_mismatch"
    """Library and driver do not match. Reboot, or reload the kernel module."""
    GONE = "gone"
    """It existed before: a GPU off its bus, a process that ended. See the GPU's health events."""
    NOT_ON_PAGE = "not_on_page"
    """A GPU that earlier pages of a dcgm-exporter had. Some have GPUs in use only; a lost one has an XID."""
    TIMED_OUT = "timed_out"
    """No answer within the deadline. The read is repeated; if it stays, look for XIDs of that GPU."""
    UNREACHABLE = "unreachable"
    """The server does not accept connections, or answers with an error. Check its address, and that it runs."""
    UNREADABLE = "unreadable"
    """An invalid answer: a sentinel, not a number, out of range. Nothing to do; the value is left out."""
    NOT_YET = "not_yet"
    """It needs two samples, or the first answer is still awaited. Wait."""
    FAILED = "failed"
    """Another error. `stepscope agent check` prints its text."""


@dataclass(frozen=True, slots=True, init=False)
class Reading:
    """One value of a metric. An agent makes thousands per second, so `__init__` takes half a frozen dataclass's time.

    Attributes:
        metric: a name of the catalogues in `core.metrics`, which have its unit.
        value: finite, in the base unit of the metric.
        labels: of the device, process, ... that the value belongs to.
        time_ns: of the read, ns since the epoch.

    Raises:
        ValueError: the value is not finite: unknown must be a `Missing`.
    """

    metric: str
    value: float
    labels: Labels
    time_ns: int

    def __init__(self, metric: str, value: float, labels: Labels, time_ns: int) -> None:
        if not isfinite(value):
            raise ValueError(f"{metric} is {value}: unknown values must be a Missing")
        _set_metric(self, metric)
        _set_value(self, value)
        _set_labels(self, labels)
        _set_time_ns(self, time_ns)


_set_metric, _set_value, _set_labels, _set_time_ns = (getattr(Reading, field.name).__set__ for field in fields(Reading))


@dataclass(frozen=True, slots=True)
class Missing:
    """A metric that could not be read.

    Attributes:
        metric: a name of the catalogues; empty when all metrics of these labels are missing.
        detail: one line for people: the driver's message, what to do; may be empty.
    """

    metric: str
    labels: Labels
    reason: MissingReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """An observation of a collector beyond a metric's value: a contradiction, an XID, a clamped value.

    Attributes:
        code: kind: "xid", "clamped".
        message: one line for people.
        labels: of the device or process, and details for programs ("xid": "79").
        time_ns: ns since the epoch.
    """

    code: str
    message: str
    labels: Labels
    time_ns: int


@dataclass(frozen=True, slots=True)
class Collection:
    """Readings, missing values and findings of one call of a collector."""

    readings: tuple[Reading, ...] = ()
    missing: tuple[Missing, ...] = ()
    findings: tuple[Finding, ...] = ()

    @classmethod
    def joined(cls, parts: Iterable[Collection]) -> Collection:
        """Several collections as one, in order."""
        kept = [part for part in parts if part.readings or part.missing or part.findings]
        if len(kept) == 1:
            return kept[0]
        return cls(
            tuple([reading for part in kept for reading in part.readings]),
            tuple([missing for part in kept for missing in part.missing]),
            tuple([finding for part in kept for finding in part.findings]),
        )


class Collector(Protocol):
    """One source of metric readings."""

    def collect(self) -> Collection:
        """Read everything once. What cannot be read is in `missing`; expected errors are not raised."""
        ...


class CollectionWireError(Exception):
    """A message is not a collection of readings."""


class StreamWriter:
    """Writes collections of readings as the messages of one stream."""

    def __init__(self) -> None:
        self._names: list[tuple[str, Labels]] | None = None
        self._missing: tuple[Missing, ...] = ()

    def write(self, collection: Collection) -> dict[str, Any]:
        """The message for `StreamReader.read`, of numbers, texts and lists."""
        readings = collection.readings
        message: dict[str, Any] = {"values": [one.value for one in readings]}
        names = [(one.metric, one.labels) for one in readings]
        if names != self._names or collection.missing != self._missing:
            self._names, self._missing = names, collection.missing
            message["shape"] = _shape_of(names, collection.missing)
        times = [one.time_ns for one in readings]
        message["times"] = times[0] if times and times.count(times[0]) == len(times) else times
        if collection.findings:
            message["findings"] = [[one.code, one.message, one.labels, one.time_ns] for one in collection.findings]
        return message


class StreamReader:
    """Reads collections of readings from one stream, from its beginning.

    A value that has not changed is the object that it was: who keeps minutes of values then keeps few objects.
    """

    def __init__(self) -> None:
        self._names: list[tuple[str, Labels]] | None = None
        self._values: list[float] = []
        self._missing: tuple[Missing, ...] = ()

    def read(self, message: Mapping[str, Any]) -> Collection:
        """The collection that was written.

        Raises:
            CollectionWireError: the message is not a collection, or no shape came before.
        """
        try:
            if "shape" in message:
                self._names, self._missing = _names_and_missing(message["shape"])
            if self._names is None:
                raise CollectionWireError("values without a shape")
            times = message["times"]
            each = times if isinstance(times, list) else [times]
            if any(not isinstance(time, int) for time in each):
                raise CollectionWireError("a time is not a whole number")
            if each is not times:
                times = each * len(self._names)
            now = message["values"]
            if len(now) == len(self._values):
                now = [
                    old if old == new and type(old) is type(new) else new
                    for old, new in zip(self._values, now, strict=True)
                ]
            self._values = now
            values = zip(self._names, now, times, strict=True)
            return Collection(
                tuple([Reading(metric, value, labels, time) for (metric, labels), value, time in values]),
                self._missing,
                tuple(
                    [
                        Finding(code, text, read_labels(pairs), time)
                        for code, text, pairs, time in message.get("findings", ())
                    ]
                ),
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise CollectionWireError(f"{type(error).__name__}: {error}") from error


def _shape_of(names: list[tuple[str, Labels]], missing: tuple[Missing, ...]) -> dict[str, Any]:
    numbers: dict[Labels, int] = {}

    def number(labels: Labels) -> int:
        return numbers.setdefault(labels, len(numbers))

    return {
        "readings": [[metric, number(labels)] for metric, labels in names],
        "missing": [[one.metric, number(one.labels), one.reason, one.detail] for one in missing],
        "labels": list(numbers),
    }


def _names_and_missing(shape: Mapping[str, Any]) -> tuple[list[tuple[str, Labels]], tuple[Missing, ...]]:
    labels = [read_labels(pairs) for pairs in shape["labels"]]
    names = [(intern(metric), labels[who]) for metric, who in shape["readings"]]
    missing = tuple(
        Missing(metric, labels[who], MissingReason(reason), detail) for metric, who, reason, detail in shape["missing"]
    )
    return names, missing
