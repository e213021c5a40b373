"""Report of a node to Kubernetes: its condition by the health of its GPUs, when it changes, and events.

Pure: no I/O, time is an argument. The condition is that of a problem, as node-problem-detector has them: True is sick.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from stepscope.core.errors import printable
from stepscope.core.hardware.devices import device_in
from stepscope.core.hardware.health import HealthEvent, HealthReport, HealthState, Severity
from stepscope.core.text.numbers import counted

COMPONENT = "stepscope-agent"
_MAX_MESSAGE = 1000
"""Kubernetes cuts events' messages at 1,024 bytes."""
_HEALTHY, _UNKNOWN = "GpusHealthy", "HealthUnknown"


class ConditionStatus(StrEnum):
    """Status of a Kubernetes node's condition."""

    TRUE = "True"
    """there is a problem"""
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class NodeCondition:
    """Condition of a Kubernetes node: its status, why as one word, and one line for people."""

    status: ConditionStatus
    reason: str
    message: str


_STALE_SECONDS = 60.0


def condition_of(report: HealthReport, least: Severity, now_ns: int) -> NodeCondition:
    """The Kubernetes condition by a report of health.

    Args:
        least: severity from which an open event is a problem of the node.
        now_ns: a report that is a minute older says nothing, unless it has such an event.
    """
    bad = [event for event in report.open_events if event.severity.rank >= least.rank]
    if bad:
        more = f"; and {counted(len(bad) - 1, 'more event')}" if len(bad) > 1 else ""
        line = event_line(bad[0])[: _MAX_MESSAGE - len(more)]
        return NodeCondition(ConditionStatus.TRUE, reason_of(bad[0].code), line + more)
    unknown = [f"{device}: {one.reason}" for device, one in report.gpus.items() if one.state is HealthState.UNKNOWN]
    if report.time_ns is None or report.machine.state is HealthState.UNKNOWN:
        unknown.insert(0, report.machine.reason or "nothing has been checked yet")
    elif now_ns - report.time_ns > _STALE_SECONDS * 1e9:
        unknown.insert(0, f"nothing has been checked for {(now_ns - report.time_ns) / 1e9:.0f} s")
    if unknown:
        return NodeCondition(ConditionStatus.UNKNOWN, _UNKNOWN, _one_line("; ".join(unknown)))
    about = counted(len(report.gpus), "GPU")
    return NodeCondition(ConditionStatus.FALSE, _HEALTHY, f"{about} without an open {least} event")


def event_line(event: HealthEvent) -> str:
    """Line of a Kubernetes event or condition on an event of health: where, what, what to do."""
    labels = dict(event.labels)
    device = device_in(labels)
    where = str(device) if device.index or device.uuid else " ".join(f"{k} {v}" for k, v in sorted(labels.items()))
    note = event.acknowledged
    known = f" (acknowledged by {note.by}: {note.why})" if note else ""
    place = f"{where}: " if where else ""
    return _one_line(f"{place}{event.message}; {event.action.line}{known}")


def reason_of(code: str) -> str:
    """Reason of a Kubernetes condition for the code of an event of health: gpu_lost -> GpuLost."""
    words = "".join(c if c.isascii() and c.isalnum() else " " for c in code).split()
    reason = "".join(word[:1].upper() + word[1:] for word in words)
    return reason if reason[:1].isalpha() else f"Health{reason}"


def _one_line(text: str) -> str:
    line = printable(" ".join(text.split()))
    return line.encode()[:_MAX_MESSAGE].decode(errors="ignore")


class SettledCondition:
    """The condition that Kubernetes is to have: a status counts once it has lasted.

    Args:
        settle_seconds: that a node must be sick, or not known, before it is reported so.
        clear_seconds: that it must be well before it is reported well.
    """

    def __init__(self, settle_seconds: float, clear_seconds: float) -> None:
        self._settle_seconds, self._clear_seconds = settle_seconds, clear_seconds
        self._reported: NodeCondition | None = None
        self._candidate: ConditionStatus | None = None
        self._since = 0.0

    def start(self, status: ConditionStatus | None) -> None:
        """Begin with the status that the node has; None where it has none."""
        self._reported = None if status is None else NodeCondition(status, "", "")

    def observe(self, condition: NodeCondition, now: float) -> NodeCondition | None:
        """The condition to report at `now`, monotonic seconds; None while nothing has lasted long enough."""
        if condition.status is not self._candidate:
            self._candidate, self._since = condition.status, now
        if self._reported is not None and condition.status is self._reported.status:
            self._reported = condition
            return condition
        is_first = self._reported is None
        is_well = condition.status is ConditionStatus.FALSE
        wait = self._clear_seconds if is_well and not is_first else self._settle_seconds
        if now - self._since >= wait:
            self._reported = condition
        # one that the node had before this agent has no words; it stays until another has lasted
        return self._reported if self._reported is not None and self._reported.reason else None


def condition_document(
    kind: str, condition: NodeCondition, *, heartbeat_ns: int, transition_ns: int | None
) -> dict[str, Any]:
    """Body of the strategic merge patch of a Kubernetes node's status, which replaces this condition alone.

    Args:
        transition_ns: since when it has this status; None leaves what the node has.
    """
    document: dict[str, Any] = {
        "type": kind,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastHeartbeatTime": timestamp(heartbeat_ns),
    }
    if transition_ns is not None:
        document["lastTransitionTime"] = timestamp(transition_ns)
    return {"status": {"conditions": [document]}}


def timestamp(time_ns: int) -> str:
    """A Kubernetes time: RFC 3339 in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_ns // 1_000_000_000))


class NodeEvents:
    """Events of health that are new since the last call, as Kubernetes events.

    Args:
        boot: id of the machine's boot. An event has the same name after a restart of the agent, so that the API server
            keeps it once: by its id, or where it has none and was open when the agent started, by the boot.
    """

    def __init__(self, node: str, *, boot: str) -> None:
        self._node, self._boot = node, boot
        self._open: dict[tuple[object, ...], HealthEvent] = {}

    def observe(self, report: HealthReport, *, now_ns: int) -> list[dict[str, Any]]:
        """Events of warnings and critical events that have begun, and of those that have ended."""
        now_open = {_key(event): event for event in report.open_events if event.severity is not Severity.INFO}
        begun = [event for key, event in now_open.items() if key not in self._open]
        ended = [event for key, event in self._open.items() if key not in now_open]
        self._open = now_open
        return [
            *(self._document(event, now_ns, is_over=False) for event in begun),
            *(self._document(event, now_ns, is_over=True) for event in ended),
        ]

    def _document(self, event: HealthEvent, now_ns: int, *, is_over: bool) -> dict[str, Any]:
        import hashlib

        began = event.id or (self._boot if event.since_start else str(event.first_ns))
        identity = "\n".join([self._node, event.code, repr(event.labels), began, str(is_over)])
        reason = reason_of(event.code)
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{self._node}.{hashlib.sha256(identity.encode(errors='replace')).hexdigest()[:16]}",
                "namespace": EVENT_NAMESPACE,
            },
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": self._node},
            "type": "Normal" if is_over else "Warning",
            "reason": f"{reason}Ended" if is_over else reason,
            "message": _one_line(f"over: {event_line(event)}") if is_over else event_line(event),
            "source": {"component": COMPONENT, "host": self._node},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._node,
            "firstTimestamp": timestamp(now_ns if is_over else event.first_ns),
            "lastTimestamp": timestamp(now_ns if is_over else event.last_ns),
            "count": 1,
        }


EVENT_NAMESPACE = "default"
"""Of events on nodes, which have no namespace."""


def _key(event: HealthEvent) -> tuple[object, ...]:
    return (event.id,) if event.id else (event.code, event.labels, event.first_ns)


class EventQueue:
    """Kubernetes events that wait to be sent: few, and not too often. The oldest of too many are dropped and counted.

    Attributes:
        num_dropped: events that were not sent.
    """

    def __init__(self, *, max_waiting: int, burst: int, seconds_each: float) -> None:
        self._waiting: deque[dict[str, Any]] = deque()
        self._max_waiting = max_waiting
        self._burst, self._seconds_each = float(burst), seconds_each
        self._allowed = float(burst)
        self._at: float | None = None
        self.num_dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, events: Iterable[dict[str, Any]]) -> None:
        for event in events:
            if len(self._waiting) >= self._max_waiting:
                self._waiting.popleft()
                self.num_dropped += 1
            self._waiting.append(event)

    def next(self, now: float) -> dict[str, Any] | None:
        """The event to send at `now`, monotonic seconds; None where none may be. `done` removes it."""
        if self._at is not None:
            self._allowed = min(self._allowed + (now - self._at) / self._seconds_each, self._burst)
        self._at = now
        return self._waiting[0] if self._waiting and self._allowed >= 1.0 else None

    def done(self) -> None:
        """The one that `next` gave is sent, or never will be."""
        self._waiting.popleft()
        self._allowed -= 1.0
