"""State of the health checks that outlives the agent, and its JSON in the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from stepscope.agent.gpus.gpu_source import KernelLogState
from stepscope.agent.gpus.targets import XidCount
from stepscope.agent.health.episodes import LastingEpisode
from stepscope.agent.health.samples import CheckEvidence
from stepscope.core.hardware.devices import Device
from stepscope.core.hardware.health import Action, HealthEvent, OperatorNote, Severity
from stepscope.core.metrics.readings import Labels, Reading, read_labels

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WatchState:
    """State of the health checks of a machine.

    Attributes:
        episodes: open events, and what an operator set healthy.
        totals: number of events that began, by labels of the thing and code.
        gpus: labels of the GPUs that have open events, by their key.
        buses: PCI bus ids of GPUs, by their key.
        xids, switches: of the checks of XIDs and SXids, as they save it.
    """

    episodes: tuple[LastingEpisode, ...] = ()
    totals: tuple[tuple[Labels, str, int], ...] = ()
    gpus: Mapping[str, Labels] = field(default_factory=dict)
    buses: Mapping[str, str] = field(default_factory=dict)
    xids: Document = field(default_factory=dict)
    switches: Document = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LastingHealth:
    """Health of a machine as its agent leaves it to the next one; both parts are of the same moment.

    Attributes:
        time_ns: of the last check, ns since the epoch.
        boot_id: of the kernel; None: not known.
        watch: state of the checks.
        log: errors counted up to there, at least those that the checks have seen; None: not known.
    """

    time_ns: int
    boot_id: str | None
    watch: WatchState
    log: KernelLogState | None


def lasting_document(lasting: LastingHealth) -> dict[str, Any]:
    """The JSON of health that lasts; `read_lasting` reads it."""
    watch, log = lasting.watch, lasting.log
    return {
        "time_ns": lasting.time_ns,
        "boot_id": lasting.boot_id,
        "episodes": [
            {
                "key": one.key,
                "code": one.code,
                "labels": one.labels,
                "event": one.event and stored_event(one.event),
                "accepted": one.accepted and asdict(one.accepted),
            }
            for one in watch.episodes
        ],
        "totals": watch.totals,
        "gpus": dict(watch.gpus),
        "buses": dict(watch.buses),
        "xids": watch.xids,
        "switches": watch.switches,
        "log": log
        and {
            "position": log.position,
            "sxids": [[one.metric, one.value, one.labels, one.time_ns] for one in log.sxids],
            "xids": [[one.device.labels(), one.xid, one.by_source, one.last_ns] for one in log.xids],
            "places": {bus_id: device.labels() for bus_id, device in log.places.items()},
        },
    }


def stored_event(event: HealthEvent) -> dict[str, Any]:
    """The JSON of an event in the store; `read_event` reads it."""
    return asdict(event)


def read_lasting(document: Document) -> LastingHealth:
    """Health that lasts, from its JSON.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: it is something else.
    """
    watch = WatchState(
        tuple(map(_read_episode, document["episodes"])),
        tuple((read_labels(labels), str(code), int(count)) for labels, code, count in document["totals"]),
        {str(key): read_labels(labels) for key, labels in document["gpus"].items()},
        {str(key): str(bus_id) for key, bus_id in document["buses"].items()},
        dict(document["xids"]),
        dict(document["switches"]),
    )
    boot_id, log = document["boot_id"], document["log"]
    return LastingHealth(
        int(document["time_ns"]),
        None if boot_id is None else str(boot_id),
        watch,
        None if log is None else _read_log(log),
    )


def read_events(documents: Iterable[Document]) -> tuple[HealthEvent, ...]:
    """Events from their JSON in the store.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: one is something else.
    """
    return tuple(map(_read_event, documents))


def _read_episode(document: Document) -> LastingEpisode:
    event, accepted = document["event"], document["accepted"]
    return LastingEpisode(
        str(document["key"]),
        str(document["code"]),
        read_labels(document["labels"]),
        None if event is None else _read_event(event),
        None if accepted is None else _read_evidence(accepted),
    )


def _read_event(document: Document) -> HealthEvent:
    evidence, ended_ns = _read_evidence(document), document["ended_ns"]
    return HealthEvent(
        str(document["code"]),
        read_labels(document["labels"]),
        evidence.severity,
        evidence.action,
        evidence.message,
        evidence.value,
        evidence.threshold,
        evidence.unit,
        int(document["first_ns"]),
        int(document["last_ns"]),
        None if ended_ns is None else int(ended_ns),
        int(document["count"]),
        bool(document["since_start"]),
        str(document["id"]),
        _read_note(document["acknowledged"]),
        _read_note(document["set_healthy"]),
    )


def _read_evidence(document: Document) -> CheckEvidence:
    value, threshold = document["value"], document["threshold"]
    return CheckEvidence(
        Severity(document["severity"]),
        Action(document["action"]),
        str(document["message"]),
        None if value is None else float(value),
        None if threshold is None else float(threshold),
        str(document["unit"]),
    )


def _read_note(document: Document | None) -> OperatorNote | None:
    if document is None:
        return None
    return OperatorNote(str(document["by"]), str(document["why"]), int(document["time_ns"]))


def _read_log(document: Document) -> KernelLogState:
    position = document["position"]
    return KernelLogState(
        None if position is None else int(position),
        tuple(
            Reading(str(metric), float(value), read_labels(labels), int(time_ns))
            for metric, value, labels, time_ns in document["sxids"]
        ),
        tuple(
            XidCount(
                _read_device(labels), str(int(xid)), {str(name): int(n) for name, n in counts.items()}, int(last_ns)
            )
            for labels, xid, counts, last_ns in document["xids"]
        ),
        {str(bus_id): _read_device(labels) for bus_id, labels in document["places"].items()},
    )


def _read_device(labels: Any) -> Device:
    known = dict(read_labels(labels))
    return Device(known.get("uuid", ""), known.get("gpu", ""), pci_bus_id=known.get("pci_bus_id", ""))
