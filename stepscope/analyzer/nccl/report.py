"""Report on all NCCL files of a job: findings, most severe first, and bandwidths of collectives by size."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from stepscope.analyzer.nccl.failures import (
    flag_findings,
    ras_findings,
    timeouts,
    trainer_findings,
    transfer_error_advice,
    transfer_error_words,
)
from stepscope.analyzer.nccl.topology import devices_of, index_communicators, planned_paths, shared_cards
from stepscope.analyzer.nccl.transports import SOCKET, harmful_settings, transports_of
from stepscope.core.documents.nccl import (
    Bandwidth,
    CardEvent,
    Communicator,
    FailedTransfer,
    HangFlags,
    InspectorCall,
    LogEvent,
    NcclFinding,
    NcclReport,
    NcclTestBandwidth,
    NcclTestEnd,
    RasStatus,
    RingPath,
    Rings,
    Transport,
    Version,
    Warned,
)
from stepscope.core.hardware.health import Severity
from stepscope.core.text.numbers import counted, form, ranks_words

_MAX_WARNINGS = 20
_HARMLESS_EVENTS = frozenset(["client reregistration", "port active"])
"""Events of network cards that need no action: a restart of the fabric manager, the return of a port."""


def explain_nccl(
    events: Sequence[LogEvent],
    calls: Iterable[InspectorCall] = (),
    statuses: Iterable[RasStatus] = (),
    pages: Iterable[HangFlags] = (),
) -> NcclReport:
    """Diagnose a job from NCCL log events (each file's in order), inspector calls, RAS answers, xpu_timer pages."""
    index = index_communicators(events)
    transports = transports_of(events, index)
    findings = [
        *_slow_transports(transports, events),
        *_not_joined(index.communicators, events),
        *_card_errors(events),
        *timeouts(events),
        *ras_findings(statuses),
        *flag_findings(pages),
        *trainer_findings(events),
        *shared_cards(events),
        *_versions(events),
        *_no_direct_memory(events, transports),
        *harmful_settings(events),
        *_warnings(events),
    ]
    findings.sort(key=lambda finding: -finding.severity.rank)
    versions = sorted({event.version for event in events if isinstance(event, Version)})
    return NcclReport(
        versions,
        index.communicators,
        transports,
        [*inspector_bandwidths(calls), *benchmark_bandwidths(events)],
        devices_of(events),
        planned_paths(events),
        findings,
    )


def _slow_transports(transports: Sequence[Transport], events: Iterable[LogEvent]) -> Iterator[NcclFinding]:
    """One finding per transport and reason."""
    wrong: dict[tuple[str, str, str], list[Transport]] = defaultdict(list)
    for one in transports:
        if not one.ok:
            wrong[one.via, one.expected, one.why].append(one)
    for (via, expected, why), pairs in wrong.items():
        ranks = sorted({rank for one in pairs for rank in (one.source, one.target)})
        place = next(event.place for event in events if isinstance(event, RingPath) and event.via.startswith(via))
        ways = counted(len(pairs), "way")
        message = f"{ways} between {ranks_words(ranks)} over {via}, not {expected}: {why}"
        severity = Severity.CRITICAL if via == SOCKET else Severity.WARNING
        yield NcclFinding("wrong_transport", severity, message, place.file, place.line, ranks)


def _not_joined(communicators: Iterable[Communicator], events: Iterable[LogEvent]) -> Iterator[NcclFinding]:
    """Ranks that began to join and have not: the log ends there, or the start hangs."""
    for one in communicators:
        waiting = sorted(set(one.ranks) - set(one.joined))
        if one.joined or not waiting or one.num_ranks <= len(one.ranks):
            continue
        silent = [rank for rank in range(one.num_ranks) if rank not in one.ranks]
        if len(silent) <= len(one.ranks):
            who = f"{ranks_words(silent)} {form(len(silent), 'has', 'have')}"
            message = f"communicator {one.id}: none has joined, and {who} not begun to"
            place = next(event.place for event in events)
            yield NcclFinding("not_joined", Severity.WARNING, message, place.file, 0, silent)


def _card_errors(events: Iterable[LogEvent]) -> Iterator[NcclFinding]:
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
                what = f"{place.process}: a transfer{peer}{card} failed"
                message = f"{what}: {words}; {transfer_error_advice(event.status)}"
                yield NcclFinding("transfer_failed", Severity.CRITICAL, message, place.file, place.line)
        elif isinstance(event, CardEvent) and event.event not in _HARMLESS_EVENTS:
            if (place.process, event.event) in reported:
                continue
            reported.add((place.process, event.event))
            message = f"{place.process}: network card: {event.event}; look at cable, transceiver and the switch's port"
            yield NcclFinding("port_event", Severity.WARNING, message, place.file, place.line)


def _versions(events: Iterable[LogEvent]) -> Iterator[NcclFinding]:
    first: dict[str, Version] = {}
    for event in events:
        if isinstance(event, Version):
            first.setdefault(event.version, event)
    if len(first) > 1:
        place = list(first.values())[1].place
        message = f"ranks load different versions of NCCL: {', '.join(sorted(first))}"
        yield NcclFinding("version_mismatch", Severity.CRITICAL, message, place.file, place.line)


def _no_direct_memory(events: Iterable[LogEvent], transports: Sequence[Transport]) -> Iterator[NcclFinding]:
    """Finding on rings without GPUDirect, for logs that contain only the end of the start."""
    if transports:
        return
    for event in events:
        if isinstance(event, Rings) and not event.uses_direct_memory:
            message = "rings are connected without GPUDirect (GDR 0): between nodes each byte goes over host memory"
            yield NcclFinding("no_gdr", Severity.INFO, message, event.place.file, event.place.line)
            return


def _warnings(events: Iterable[LogEvent]) -> list[NcclFinding]:
    """NCCL's other warnings, each text once."""
    found: dict[str, NcclFinding] = {}
    for event in events:
        if isinstance(event, Warned) and event.text not in found and len(found) < _MAX_WARNINGS:
            place, message = event.place, f"{event.place.process}: {event.text}"
            found[event.text] = NcclFinding("nccl_warning", Severity.WARNING, message, place.file, place.line)
    return list(found.values())


_MIN_SHARE = 0.5
"""Share of collectives in which a rank must be the last to be named."""


def inspector_bandwidths(calls: Iterable[InspectorCall]) -> list[Bandwidth]:
    """One row per communicator, collective and size."""
    rows: dict[tuple[str, str, str], list[InspectorCall]] = defaultdict(list)
    for call in calls:
        rows[call.communicator, call.collective, call.size].append(call)
    return [_bandwidth(same) for _, same in sorted(rows.items())]


def _bandwidth(calls: Sequence[InspectorCall]) -> Bandwidth:
    by_sequence: dict[int | None, list[InspectorCall]] = defaultdict(list)
    for call in calls:
        by_sequence[call.sequence].append(call)
    last: Counter[int] = Counter()
    rates = []
    for sequence, members in by_sequence.items():
        if sequence is None:
            rates += [call.bus_gbs for call in members]
            continue
        shortest = min(members, key=lambda call: call.microseconds)
        rates.append(shortest.bus_gbs)
        if len(members) > 1 and shortest.rank is not None:
            last[shortest.rank] += 1
    first = calls[0]
    rank, count = last.most_common(1)[0] if last else (None, 0)
    share = count / last.total() if last else 0.0
    is_named = share >= _MIN_SHARE
    return Bandwidth(
        first.communicator,
        first.collective,
        first.num_ranks,
        first.bytes,
        first.size,
        len(rates),
        median(rates),
        rank if is_named else None,
        share if is_named else None,
    )


def benchmark_bandwidths(events: Iterable[LogEvent]) -> list[Bandwidth]:
    """One row per run of nccl-tests: the mean over its sizes."""
    found: list[Bandwidth] = []
    rate: NcclTestBandwidth | None = None
    for event in events:
        if isinstance(event, NcclTestBandwidth):
            rate = event
        elif isinstance(event, NcclTestEnd) and rate is not None and rate.place.file == event.place.file:
            name = event.test.removesuffix("_perf")
            found.append(Bandwidth("", name, None, None, "mean over sizes", 1, rate.bus_bandwidth_gbs))
            rate = None
    if rate is not None:
        found.append(Bandwidth("", "", None, None, "mean over sizes", 1, rate.bus_bandwidth_gbs))
    return found
