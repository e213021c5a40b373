"""The analysis of a run with what its dumps add: how the job ended, and transports as reasons of communication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from stepscope.analyzer.dumps.hang import FlightRecords, hang_finding
from stepscope.analyzer.dumps.out_of_memory import RankSnapshot, memory_finding
from stepscope.analyzer.dumps.records import Ending, Finding, JobRecords
from stepscope.analyzer.dumps.transports import NCCL, WITHOUT_LOG, JobLog, transport_finding, would_help
from stepscope.core.documents.analysis import Analysis, EvidenceLayer, NextCause, SecondaryCause, Verdict
from stepscope.core.vocabulary import Cause, Notice

_MAX_SECONDARY = 3


class RunDumps(NamedTuple):
    """Dumps of a run directory; `notices` are on those that were not read."""

    flight: FlightRecords = FlightRecords()
    snapshots: Sequence[RankSnapshot] = ()
    nccl: JobLog | None = None
    notices: Sequence[Notice] = ()


def with_dumps(analysis: Analysis, dumps: RunDumps, records: JobRecords) -> Analysis:
    """The analysis joined with the dumps of its run; memory that ran out comes before the hang that follows from it."""
    findings: list[Finding] = []
    if dumps.nccl is not None:
        finding, analysis = transport_finding(dumps.nccl, analysis, records)
        findings.append(finding)
    elif would_help(analysis):
        findings.append(Finding(EvidenceLayer(NCCL, False, None, WITHOUT_LOG)))
    if dumps.snapshots:
        findings.append(memory_finding(dumps.snapshots, records))
    if (hang := hang_finding(dumps.flight, records)) is not None:
        findings.append(hang)
    endings = [finding.ending for finding in findings if finding.ending is not None]
    notices = [*dumps.notices, *(notice for finding in findings for notice in finding.notices)]
    if endings:
        analysis = replace(analysis, verdict=_ended(analysis.verdict, endings[0]))
        notices += [Notice(f"also_{other.cause.value}", other.summary) for other in endings[1:]]
    time = analysis.job_time
    if time is not None:
        time = replace(time, layers=[*time.layers, *(finding.layer for finding in findings)])
    return replace(analysis, job_time=time, warnings=[*analysis.warnings, *notices])


def _ended(before: Verdict, ending: Ending) -> Verdict:
    """The verdict on how a job ended, before which its largest loss comes second."""
    following, secondary = before.next, before.secondary
    if before.bottleneck and before.share is not None and before.cause is not Cause.INSUFFICIENT_EVIDENCE:
        following = NextCause(before.cause, before.share, before.reasons)
        secondary = [SecondaryCause(before.cause, before.share, before.summary), *secondary][:_MAX_SECONDARY]
    return replace(
        before,
        cause=ending.cause,
        reasons=ending.reasons,
        ranks=ending.ranks,
        confidence=ending.confidence,
        summary=ending.summary,
        evidence=ending.evidence,
        actions=ending.actions,
        secondary=secondary,
        next=following,
        bottleneck=None,
        share=None,
        fix=None,
    )
