"""Report of `stepscope agent check`: state of each source, and the metrics collected or missing of each GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from stepscope.agent.sources import GPUS, Sources, silent_gpus, wait_for_all
from stepscope.core.hardware.devices import device_in
from stepscope.core.metrics.readings import Collection, Labels, Missing, MissingReason
from stepscope.core.vocabulary import Notice

_ANSWER_SECONDS = 40.0
"""Longer than a driver's library may take to load."""
_SAMPLES_SECONDS = 2.5
"""For values that need two samples."""

_LATE = (MissingReason.NOT_YET, MissingReason.TIMED_OUT)


@dataclass(frozen=True, slots=True)
class SourceReport:
    """One source.

    Attributes:
        reason, detail: why it gives nothing; None and empty where it does.
        num_readings: values of its last collection.
        seconds: how long that took; None before the first.
        findings: lines on what it noticed.
    """

    name: str
    reason: MissingReason | None
    detail: str
    num_readings: int
    seconds: float | None
    findings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AgentCheck:
    """All sources, and what is had of each GPU; the capabilities without labels are the machine's.

    Attributes:
        warnings: sources and GPUs that have not answered before the check was over.
    """

    sources: tuple[SourceReport, ...]
    capabilities: tuple[Capabilities, ...]
    warnings: tuple[Notice, ...] = ()
    schema: str = "stepscope.agent-check/1"


def check_machine(sources: Sources, *, samples_seconds: float = _SAMPLES_SECONDS) -> AgentCheck:
    """Read all sources for some seconds.

    Args:
        sources: opened and closed here.
        samples_seconds: time to read after all have answered.
    """
    with sources:
        never = threading.Event()
        wait_for_all(sources, never, seconds=_ANSWER_SECONDS)
        never.wait(samples_seconds)
        states = sources.states()
    silent = silent_gpus(states)
    reports = tuple(
        SourceReport(
            state.name,
            state.reason,
            state.detail or (f"without {', '.join(silent)}" if state.name == GPUS and silent else ""),
            len(state.collection.readings),
            state.seconds,
            tuple(finding.message for finding in state.collection.findings),
        )
        for state in states
    )
    late = [Notice("source_late", f"{one.name}: {one.detail}") for one in reports if one.reason in _LATE]
    late += [Notice("gpu_silent", line) for line in silent]
    capabilities = capabilities_of(Collection.joined(state.collection for state in states))
    return AgentCheck(reports, tuple(capabilities), tuple(late))


@dataclass(frozen=True, slots=True)
class Gap:
    """Metrics that are missing for one reason.

    Attributes:
        reason, detail: as of a `Missing`.
        metrics: their names, sorted; empty where the whole GPU is missing.
    """

    reason: MissingReason
    detail: str
    metrics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What can be had of one GPU or MIG instance.

    Attributes:
        labels: which it is; empty for what concerns the whole machine.
        collected: names of metrics with a value, sorted.
        gaps: what has none.
    """

    labels: Labels
    collected: tuple[str, ...]
    gaps: tuple[Gap, ...]


def capabilities_of(collection: Collection) -> list[Capabilities]:
    """The report, GPU by GPU, in the order of their labels.

    Args:
        collection: of at least two rounds of collecting, as some values need two samples. A metric that has values
            with some further labels (a link, a process) is collected.
    """
    collected: dict[Labels, set[str]] = {}
    missing: dict[Labels, list[Missing]] = {}
    for reading in collection.readings:
        collected.setdefault(_device_labels(reading.labels), set()).add(reading.metric)
    for absent in collection.missing:
        missing.setdefault(_device_labels(absent.labels), []).append(absent)
    return [
        Capabilities(
            labels,
            tuple(sorted(collected.get(labels, ()))),
            _gaps(absent for absent in missing.get(labels, ()) if absent.metric not in collected.get(labels, ())),
        )
        for labels in sorted(collected.keys() | missing.keys(), key=_order)
    ]


def _device_labels(labels: Labels) -> Labels:
    device = device_in(dict(labels))
    return device.labels() if device.uuid or device.index else ()


def _order(labels: Labels) -> tuple[int, Labels]:
    index = dict(labels).get("gpu", "")
    return int(index) if index.isdecimal() else -1, labels


def _gaps(missing: Iterable[Missing]) -> tuple[Gap, ...]:
    groups: dict[tuple[MissingReason, str], set[str]] = {}
    for absent in missing:
        groups.setdefault((absent.reason, absent.detail), set()).add(absent.metric)
    return tuple(Gap(reason, detail, tuple(sorted(names - {""}))) for (reason, detail), names in groups.items())
