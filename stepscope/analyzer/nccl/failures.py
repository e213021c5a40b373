"""Failures of network cards, and hints from the trainer's log.

Statuses of failed transfers are libibverbs' ibv_wc_status; their usual causes are from reports (pytorch#81628,
nccl#426, nccl#1405).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stepscope.core.documents.nccl import NcclFinding
from stepscope.core.documents.nccl_facts import CardEvent, FailedTransfer, LogEvent, TrainerTimes
from stepscope.core.hardware.health import Severity

_STATUS = {
    1: "local length error",
    2: "local queue pair error",
    4: "local protection error: memory that is not registered, or no longer",
    5: "work flushed: the queue pair had failed before; look for the first error",
    6: "memory window bind error",
    8: "bad response",
    9: "local access error",
    10: "remote access error: the peer's memory is not registered, or no longer",
    11: "remote operation error: the peer's card or process is gone",
    12: "retries exceeded: the peer does not answer",
    13: "the peer was never ready to receive",
}

_ADVICE = {
    4: "look at the GPU's memory registration: nvidia_peermem or DMA-BUF, NCCL_NET_GDR_LEVEL, IOMMU; try GDR off once",
    5: "look for an earlier error of this peer, and at its host",
    10: "look at the peer's log: it freed memory or failed first",
    11: "look at the peer's host and log",
    12: "look at cable, switch port and routing to the peer; if it fails at once, NCCL_IB_GID_INDEX (often 3)",
    13: "look at the peer: it hangs or is gone",
}


def transfer_error_words(status: int, vendor_error: int) -> str:
    """Description of a failed transfer: "retries exceeded: the peer does not answer (status 12, vendor error 129)"."""
    return f"{_STATUS.get(status, 'unknown error')} (status {status}, vendor error {vendor_error})"


def transfer_error_advice(status: int) -> str:
    """What to check after a failed transfer."""
    return _ADVICE.get(status, "look at both hosts' kernel logs and the card's counters")


_HARMLESS_EVENTS = frozenset(["client reregistration", "port active"])
"""Events of network cards that need no action: a restart of the fabric manager, the return of a port."""


def card_errors(events: Iterable[LogEvent]) -> Iterator[NcclFinding]:
    """Failed transfers, and events of cards and ports; each once per process."""
    seen: set[tuple[str, int, int]] = set()
    reported: set[tuple[str, str]] = set()
    for event in events:
        place = event.place
        if isinstance(event, FailedTransfer):
            key = (place.process, event.status, event.vendor_error)
            if key not in seen:
                seen.add(key)
                card = f" on {event.card}" if event.card else ""
                peer = f" with {event.peer}" if event.peer else ""
                words = transfer_error_words(event.status, event.vendor_error)
                what = f"{_who(event)}a transfer{peer}{card} failed"
                message = f"{what}: {words}; {transfer_error_advice(event.status)}"
                yield NcclFinding("transfer_failed", Severity.CRITICAL, message, place.file, place.line)
        elif isinstance(event, CardEvent) and event.event not in _HARMLESS_EVENTS:
            if (place.process, event.event) in reported:
                continue
            reported.add((place.process, event.event))
            message = f"{_who(event)}network card: {event.event}; look at cable, transceiver and the switch's port"
            yield NcclFinding("port_event", Severity.WARNING, message, place.file, place.line)


def _who(event: FailedTransfer | CardEvent) -> str:
    return f"{event.place.process}: " if event.place.process else ""


_NEEDED = ("forward", "backward", "step")
_COMMUNICATION = "backward_allreduce"


def trainer_findings(events: Iterable[LogEvent]) -> list[NcclFinding]:
    """NCCL diagnosis: a finding if the optimizer's step takes longer than forward and backward together."""
    for event in events:
        if isinstance(event, TrainerTimes) and all(part in event.parts for part in _NEEDED):
            forward, backward, step = (event.parts[part] for part in _NEEDED)
            if step > forward + backward:
                communication = event.parts.get(_COMMUNICATION)
                less = f", communication {communication:,.0f}" if communication is not None else ""
                message = (
                    f"the optimizer's step takes {step:,.0f} ms, forward and backward {forward + backward:,.0f}{less}: "
                    "host-bound, an optimizer on the CPU; not NCCL"
                )
                return [NcclFinding("cpu_optimizer", Severity.WARNING, message, event.place.file, event.place.line)]
    return []
