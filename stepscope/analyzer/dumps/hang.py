"""Hang by the flight recorders of a run, if they are of the job as it ended."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from stepscope.analyzer.dumps.records import Ending, Finding, JobRecords
from stepscope.core.documents.analysis import EvidenceLayer
from stepscope.core.documents.hang import OF_ALL, FlightDump, HangKind, HangReport, HangVerdict
from stepscope.core.text.numbers import counted, form, ranks_words
from stepscope.core.vocabulary import Cause, Evidence, Notice

FLIGHT = "flight"


class FlightRecords(NamedTuple):
    """Flight recorder dumps of a run.

    Attributes:
        report: of `stepscope hang` on them.
        unreadable: ranks whose dumps cannot be read.
    """

    dumps: Sequence[FlightDump]
    report: HangReport
    unreadable: Collection[int] = ()


def hang_finding(flight: FlightRecords, records: JobRecords) -> Finding:
    """What flight recorders say of a job: it hangs, or why they are no proof of that."""
    verdict = flight.report.verdict
    num_dumps = counted(len(flight.dumps), "flight recorder dump")
    if why := _foreign(flight, records):
        return _unused(f"{num_dumps} of another job: {why}")
    if records.is_of_earlier_attempt(_newest_ns(flight.dumps)):
        return _unused(f"{num_dumps} of an earlier attempt{_said(verdict)}")
    if verdict.cause is not Cause.HANG:
        notice = [] if verdict.cause == "none" else [Notice("hang_dumps", f"{num_dumps}: {verdict.summary}")]
        return Finding(EvidenceLayer(FLIGHT, True, None, f"{num_dumps}: {verdict.summary}"), notice)
    if damaged := sorted({*verdict.ranks} & {*flight.unreadable}):
        who = form(len(damaged), "whose dump", "whose dumps")
        return _unused(f"{num_dumps}: the others wait for {ranks_words(damaged)}, {who} cannot be read")
    if _went_on(flight.dumps, records):
        said = f"{num_dumps}, after which the job trained on{_said(verdict)}"
        return Finding(EvidenceLayer(FLIGHT, False, False, said), [Notice("hang_dumps", said)])
    kind = "" if verdict.kind in (None, HangKind.UNKNOWN) else f"{verdict.kind}: "
    ending = Ending(
        Cause.HANG,
        list(verdict.reasons),
        list(verdict.ranks),
        verdict.confidence,
        f"{kind}{verdict.summary}",
        [
            Evidence("flight_recorder_dumps", len(flight.dumps), "flight recorder dumps", ranks=flight.report.ranks),
            *(
                Evidence(f"flight_recorder: {one.message}", len(one.ranks), "ranks", ranks=one.ranks)
                for one in verdict.evidence
            ),
        ],
        list(verdict.actions),
    )
    return Finding(EvidenceLayer(FLIGHT, True, True, num_dumps), ending=ending)


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


def _newest_ns(dumps: Sequence[FlightDump]) -> int | None:
    """Time of the newest call in the dumps, else when they were written; None where unknown."""
    calls = [time for dump in dumps if (time := _last_call_ns(dump)) is not None]
    return max(calls or [dump.written_ns for dump in dumps if dump.written_ns is not None], default=None)


def _last_call_ns(dump: FlightDump) -> int | None:
    times = [time for call in dump.operations for time in (call.created_ns, call.completed_ns) if time]
    return max(times, default=None)


def _went_on(dumps: Sequence[FlightDump], records: JobRecords) -> bool:
    """Whether ranks that wait in a call by their dumps ended it, as their steps show."""
    waiting = [dump for dump in dumps if any(not call.is_done for call in dump.operations)]
    times = {dump.rank: time for dump in waiting if (time := _last_call_ns(dump) or dump.written_ns) is not None}
    if records.may_have_gone_on([*times]):
        return True
    return any(records.went_on(rank, time_ns) for rank, time_ns in times.items())
