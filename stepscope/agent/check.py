"""`stepscope agent check`: what can be collected on this machine, what cannot, and why."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from stepscope.agent.service import silent_gpus, wait_for_all
from stepscope.agent.sources import GPUS, Sources
from stepscope.collectors.capabilities import Capabilities, capabilities_of
from stepscope.core.documents.evidence import Notice
from stepscope.core.metrics.readings import Collection, MissingReason

_ANSWER_SECONDS = 40.0
"""Longer than a driver's library may take to load."""
_SAMPLES_SECONDS = 2.5
"""For values that need two samples."""

_LATE = (MissingReason.NOT_YET, MissingReason.TIMED_OUT)


@dataclass(frozen=True, slots=True)
class SourceReport:
    """One source.

    Attributes:
        name: of the source.
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
        schema: of the document.
    """

    sources: tuple[SourceReport, ...]
    capabilities: tuple[Capabilities, ...]
    warnings: tuple[Notice, ...] = ()
    schema: str = "stepscope.agent-check/1"


def check_machine(sources: Sources, *, samples_seconds: float = _SAMPLES_SECONDS) -> AgentCheck:
    """Read everything for some seconds, and tell.

    Args:
        sources: what to read; opened and closed here.
        samples_seconds: how long to read on after all have answered.
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
