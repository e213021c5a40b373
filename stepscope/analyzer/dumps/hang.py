"""Hang by the flight recorders of a run, if they are of the job as it ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from stepscope.analyzer.blame.remedies import remedy_text
from stepscope.analyzer.dumps.records import Ending, Finding, JobRecords
from stepscope.analyzer.dumps.stuck import LOOK_AT_STACKS, StuckStep, stuck_ending
from stepscope.analyzer.hang import explain_hang
from stepscope.core.documents.analysis import EvidenceLayer
from stepscope.core.documents.hang import OF_ALL, FlightDump, HangKind, HangVerdict, LiveHang, LiveHangState
from stepscope.core.text.numbers import counted, form, ranks_words
from stepscope.core.vocabulary import Cause, Evidence, Notice

FLIGHT = "flight"


class FlightRecords(NamedTuple):
    """What a run has in flight/.

    Attributes:
        dumps: flight recorders, one a rank.
        device_waits: by rank: the call in which its host waits for its device.
        unreadable: ranks whose dumps cannot be read.
        stuck: steps of ranks that did not end.
        at_work: by rank: what it did when it was last seen that may take long (a named phase, a checkpoint).
        live: state of a long step of a job that runs; None of other jobs.
    """

    dumps: Sequence[FlightDump] = ()
    device_waits: Mapping[int, str] = MappingProxyType({})
    unreadable: Collection[int] = ()
    stuck: Sequence[StuckStep] = ()
    at_work: Mapping[int, str] = MappingProxyType({})
    live: LiveHang | None = None


def hang_finding(flight: FlightRecords, records: JobRecords) -> Finding | None:
    """What a run's flight recorders say: it hangs, or why they are no proof; without them what its ranks said."""
    live = flight.live
    if live is not None and live.state in (LiveHangState.BUSY, LiveHangState.NONE):
        return Finding(EvidenceLayer(FLIGHT, True, None, f"step {live.step} is long: {live.summary}"))
    by_ranks = None if live is None else _live_ending(live)
    by_ranks = by_ranks or stuck_ending(flight.stuck, records)
    if flight.dumps:
        finding = _by_dumps(flight, records)
        is_early = live is not None and live.state is LiveHangState.UNDECIDED
        if is_early and finding.ending is not None and not finding.ending.ranks:
            finding = finding._replace(ending=None)
        return finding if finding.ending is not None or not finding.layer.used else finding._replace(ending=by_ranks)
    if by_ranks is None:
        return None
    return Finding(EvidenceLayer(FLIGHT, True, True, "reports of the ranks, no flight recorder"), ending=by_ranks)


def _live_ending(live: LiveHang) -> Ending | None:
    """The hang that the ranks of a long step reported."""
    if live.state is not LiveHangState.HANG:
        return None
    return Ending(
        Cause.HANG,
        list(live.reasons),
        list(live.ranks),
        live.confidence,
        f"{_kind_words(live.kind)}{live.summary}",
        [
            Evidence("step_open_for", live.age_seconds, "s"),
            *(
                Evidence(f"rank_state: {one.message}", len(one.ranks), "ranks", ranks=one.ranks)
                for one in live.evidence
            ),
        ],
        [remedy_text(reason) for reason in live.reasons] or [LOOK_AT_STACKS],
    )


def _kind_words(kind: HangKind | None) -> str:
    return "" if kind in (None, HangKind.UNKNOWN) else f"{kind}: "


def _by_dumps(flight: FlightRecords, records: JobRecords) -> Finding:
    num_dumps = counted(len(flight.dumps), "flight recorder dump")
    if why := _foreign(flight, records):
        return _unused(f"{num_dumps} of another job: {why}")
    earlier = [dump for dump in flight.dumps if records.is_of_earlier_attempt(_time_ns(dump))]
    if len(earlier) == len(flight.dumps):
        return _unused(f"{num_dumps} of an earlier attempt{_said(_verdict(flight.dumps, flight, records))}")
    since_ns = min((time for dump in flight.dumps if (time := _went_on_ns(dump, records)) is not None), default=0)
    dumps = [dump for dump in flight.dumps if dump not in earlier and (_time_ns(dump) or 0) >= since_ns]
    if not dumps or records.may_have_gone_on([dump.rank for dump in dumps if _waits(dump)]):
        said = f"{num_dumps}, after which the job trained on{_said(_verdict(flight.dumps, flight, records))}"
        return Finding(EvidenceLayer(FLIGHT, False, False, said), [Notice("hang_dumps", said)])
    verdict = _verdict(dumps, flight, records)
    num_dumps = counted(len(dumps), "flight recorder dump")
    notices = []
    if left := sorted({dump.rank for dump in flight.dumps} - {dump.rank for dump in dumps}):
        notices.append(Notice("hang_dumps", f"dumps of {ranks_words(left)} are of an earlier time; not used"))
    if verdict.cause is not Cause.HANG:
        notices += [] if verdict.cause == "none" else [Notice("hang_dumps", f"{num_dumps}: {verdict.summary}")]
        return Finding(EvidenceLayer(FLIGHT, True, None, f"{num_dumps}: {verdict.summary}"), notices)
    if damaged := sorted({*verdict.ranks} & {*flight.unreadable}):
        who = form(len(damaged), "whose dump", "whose dumps")
        return _unused(f"{num_dumps}: the others wait for {ranks_words(damaged)}, {who} cannot be read")
    if working := sorted({*verdict.ranks} & {*flight.at_work}):
        return _unused(f"{num_dumps}: the others wait for {ranks_words(working)}, in {flight.at_work[working[0]]}")
    ending = Ending(
        Cause.HANG,
        list(verdict.reasons),
        list(verdict.ranks),
        verdict.confidence,
        f"{_kind_words(verdict.kind)}{verdict.summary}",
        [
            Evidence("flight_recorder_dumps", len(dumps), "flight recorder dumps", ranks=[dump.rank for dump in dumps]),
            *(
                Evidence(f"flight_recorder: {one.message}", len(one.ranks), "ranks", ranks=one.ranks)
                for one in verdict.evidence
            ),
        ],
        list(verdict.actions),
    )
    return Finding(EvidenceLayer(FLIGHT, True, True, num_dumps), notices, ending)


def _verdict(dumps: Sequence[FlightDump], flight: FlightRecords, records: JobRecords) -> HangVerdict:
    return explain_hang(dumps, world_size=records.world_size, device_waits=flight.device_waits).verdict


def _unused(why: str) -> Finding:
    return Finding(EvidenceLayer(FLIGHT, False, None, why), [Notice("hang_dumps", f"{why}; not used for the verdict")])


def _said(verdict: HangVerdict) -> str:
    return f" ({verdict.summary})" if verdict.cause is Cause.HANG else ""


def _foreign(flight: FlightRecords, records: JobRecords) -> str:
    """Why the dumps are of another job; empty where nothing says so."""
    if more := [dump.rank for dump in flight.dumps if dump.rank >= records.world_size]:
        return f"of {ranks_words(more)}, and this one has {counted(records.world_size, 'rank')}"
    for dump in flight.dumps:
        for name, members in dump.groups.items():
            if dump.descriptions.get(name) == OF_ALL and members and len(members) != records.world_size:
                return f"it has {counted(len(members), 'rank')}, and this one {records.world_size}"
    return ""


def _time_ns(dump: FlightDump) -> int | None:
    """Time of the newest call in a dump, else when it was written: a copy is younger."""
    times = [time for call in dump.operations for time in (call.created_ns, call.completed_ns) if time]
    return max(times, default=dump.written_ns)


def _waits(dump: FlightDump) -> bool:
    """Whether a call is open, or timed out: gloo marks all that have ended so."""
    return any(not call.is_done or (call.is_given_up and call.backend != "gloo") for call in dump.operations)


def _went_on_ns(dump: FlightDump, records: JobRecords) -> int | None:
    """When a rank that waits in a call by its dump had ended it, as its steps show; None where it did not."""
    time_ns = _time_ns(dump)
    return records.went_on_ns(dump.rank, time_ns) if _waits(dump) and time_ns is not None else None
