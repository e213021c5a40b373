"""Transports by the NCCL log of a run, as reasons of its exposed communication."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from stepscope.analyzer.dumps.records import Finding, JobRecords
from stepscope.analyzer.nccl.transports import JobTransports
from stepscope.analyzer.verdict import SECONDARY_THRESHOLD
from stepscope.core.documents.analysis import Analysis, EvidenceLayer, Verdict
from stepscope.core.documents.nccl import NcclFinding, NcclReport, Transport
from stepscope.core.hardware.health import Severity
from stepscope.core.text.numbers import counted, ranks_words
from stepscope.core.vocabulary import Cause, Evidence, Notice, Reason

NCCL = "nccl"
_T = TypeVar("_T")
WITHOUT_LOG = "none: NCCL_DEBUG=INFO with NCCL_DEBUG_FILE=RUN/nccl/%h.%p would tell the transport of each pair of ranks"
_MAX_FINDINGS = 5
_MAX_ACTIONS = 3
_ASKS_FOR_LOG = "NCCL_DEBUG=INFO"
"""Part of actions that the log answers."""
_SETTING = re.compile(r"\b(NCCL_\w+)=(\S+) set in the environment")
_REASONS = {"slow_nvlink": Reason.SLOW_LINK, "shared_nic": Reason.SHARED_NIC}
"""Reasons by the codes of findings on the machines."""


class JobLog(NamedTuple):
    """NCCL log of a job: the report of `stepscope nccl` on it, and its transports by the job's ranks."""

    report: NcclReport
    of_job: JobTransports


class _Fault(NamedTuple):
    """Why communication is slow by the log; `ranks` is empty where unknown."""

    reason: Reason
    evidence: Evidence
    words: str
    action: str


def transport_finding(log: JobLog, analysis: Analysis, records: JobRecords) -> tuple[Finding, Analysis]:
    """What an NCCL log says, and the analysis with its reasons where communication takes a part of training time."""
    if why := _foreign(log, records):
        notice = Notice("nccl_log", f"the NCCL log is of another job: {why}; not used")
        return Finding(EvidenceLayer(NCCL, False, None, f"the log is of another job: {why}"), [notice]), analysis
    faults = [*_wrong_transports(log), *_slow_machines(log)]
    known = _reasons_of(analysis)
    notices = _other_findings(log)
    note = f"{counted(len(log.of_job.transports), 'way')} between {counted(len(_ranks_in(log)), 'rank')}"
    if not faults:
        is_contradicted = Reason.WRONG_TRANSPORT in known and bool(log.of_job.transports)
        agrees = False if is_contradicted else None
        note += ", all as expected" if log.of_job.transports else ""
        if is_contradicted:
            text = "bus bandwidth shows a slower transport, and the NCCL log shows the expected one on all ways"
            notices.append(Notice("transports_disagree", text))
        return Finding(EvidenceLayer(NCCL, True, agrees, note), notices), analysis
    agrees = True if {fault.reason for fault in faults} & {*known} else None
    finding = Finding(EvidenceLayer(NCCL, True, agrees, "; ".join(fault.words for fault in faults)))
    if not _is_exposed(analysis.verdict) or not _concerns(analysis.verdict, faults):
        hidden = "communication takes little of training time"
        unused = [Notice("nccl_log", f"{fault.words} ({hidden}): {fault.action}") for fault in faults]
        return finding._replace(notices=[*unused, *notices]), analysis
    if analysis.verdict.cause is not Cause.COMMUNICATION:
        notices = [*(Notice("nccl_log", f"{fault.words}: {fault.action}") for fault in faults), *notices]
    return finding._replace(notices=notices), _with_faults(analysis, faults)


def would_help(analysis: Analysis) -> bool:
    """Whether an NCCL log would tell more: GPUs' communication is the verdict."""
    return analysis.job.device_kind == "gpu" and analysis.job.world_size > 1 and _is_verdict(analysis.verdict)


def _foreign(log: JobLog, records: JobRecords) -> str:
    """Why the log is of another job; empty where nothing says so."""
    largest = max((one.num_ranks for one in log.report.communicators), default=0)
    if largest > records.world_size:
        return f"it has {counted(largest, 'rank')}, and this one {records.world_size}"
    for rank, host in log.of_job.hosts.items():
        known = records.hosts.get(rank)
        if known and host and _short(known) != _short(host):
            return f"its rank {rank} is on {host}, and this one's on {known}"
    return ""


def _short(host: str) -> str:
    return host.partition(".")[0].lower()


def _ranks_in(log: JobLog) -> set[int]:
    return {rank for one in log.of_job.transports for rank in (one.source, one.target)}


def _wrong_transports(log: JobLog) -> list[_Fault]:
    wrong: dict[tuple[str, str, str], list[Transport]] = {}
    for one in log.of_job.transports:
        if not one.ok:
            wrong.setdefault((one.via, one.expected, one.why), []).append(one)
    faults = []
    for (via, expected, why), ways in wrong.items():
        ranks = sorted({rank for one in ways for rank in (one.source, one.target)})
        setting = _SETTING.search(why)
        with_it = log.of_job.ranks_with.get(setting[1], []) if setting else []
        is_of_some = 0 < len(with_it) < len(log.of_job.hosts)
        ranks, on = (with_it, f" on {ranks_words(with_it)}") if is_of_some else (ranks, "")
        action = f"unset {setting[1]} (now {setting[2]}){on}" if setting else f"find why NCCL uses {via}: {why}"
        cause = f"{setting[1]}={setting[2]}" if setting else why
        evidence = Evidence(f"transport: {via}, not {expected} ({why})", len(ways), "ways", ranks=ranks)
        faults.append(_Fault(Reason.WRONG_TRANSPORT, evidence, f"{ranks_words(ranks)} use {via}: {cause}", action))
    return faults


def _slow_machines(log: JobLog) -> list[_Fault]:
    """Slow links and shared cards; cards only of a job on several nodes."""
    is_on_nodes = (
        any((one.num_nodes or 1) > 1 for one in log.report.communicators) or len({*log.of_job.hosts.values()}) > 1
    )
    return [
        _Fault(
            _REASONS[one.code],
            Evidence(f"nccl_topology: {one.message}", 1, "", ranks=one.ranks),
            one.message,
            one.message,
        )
        for one in log.report.findings
        if one.code in _REASONS and (is_on_nodes or one.code != "shared_nic")
    ]


def _other_findings(log: JobLog) -> list[Notice]:
    """Errors and warnings of the log that are no reasons of slow communication."""
    others = [one for one in log.report.findings if _is_notable(one)]
    return [Notice(f"nccl_{one.code}", f"NCCL log: {one.message}") for one in others[:_MAX_FINDINGS]]


def _is_notable(finding: NcclFinding) -> bool:
    is_reason = finding.code in _REASONS or finding.code == "wrong_transport"
    return finding.severity.rank >= Severity.WARNING.rank and not is_reason


def _reasons_of(analysis: Analysis) -> list[Reason]:
    """Reasons of communication by the trace."""
    return [reason for row in analysis.root_causes if row.cause is Cause.COMMUNICATION for reason in row.reasons]


def _is_verdict(verdict: Verdict) -> bool:
    return verdict.cause is Cause.COMMUNICATION and bool(verdict.bottleneck)


def _is_exposed(verdict: Verdict) -> bool:
    """Whether communication is the verdict, or takes a part of training time beside it."""
    is_next = verdict.next is not None and verdict.next.cause is Cause.COMMUNICATION
    beside = any(other.cause is Cause.COMMUNICATION for other in verdict.secondary)
    is_large = verdict.next is not None and verdict.next.share > SECONDARY_THRESHOLD
    return _is_verdict(verdict) or beside or (is_next and is_large)


def _concerns(verdict: Verdict, faults: Sequence[_Fault]) -> bool:
    """Whether the verdict names no ranks, or some of those with the fault."""
    ranks = {rank for fault in faults for rank in fault.evidence.ranks}
    return not _is_verdict(verdict) or not verdict.ranks or not ranks or bool(ranks & {*verdict.ranks})


def _with_faults(analysis: Analysis, faults: Sequence[_Fault]) -> Analysis:
    reasons = [fault.reason for fault in faults]
    evidence = [fault.evidence for fault in faults]
    because = f"because {'; '.join(fault.words for fault in faults)}"
    rows = [
        replace(row, reasons=_first(reasons, row.reasons), evidence=[*row.evidence, *evidence])
        if row.cause is Cause.COMMUNICATION
        else row
        for row in analysis.root_causes
    ]
    verdict = analysis.verdict
    if _is_verdict(verdict):
        fix = verdict.fix
        others = [action for action in verdict.actions if _ASKS_FOR_LOG not in action]
        actions = _first([fault.action for fault in faults], others)[:_MAX_ACTIONS]
        verdict = replace(
            verdict,
            reasons=_first(reasons, verdict.reasons),
            evidence=[*verdict.evidence, *evidence],
            summary=f"{verdict.summary}, {because}",
            actions=actions,
            fix=None if fix is None or fix.change is not None else replace(fix, action=actions[0]),
        )
    else:
        following = verdict.next
        if following is not None and following.cause is Cause.COMMUNICATION:
            following = replace(following, reasons=_first(reasons, following.reasons))
        secondary = [
            replace(other, summary=f"{other.summary}, {because}") if other.cause is Cause.COMMUNICATION else other
            for other in verdict.secondary
        ]
        verdict = replace(verdict, next=following, secondary=secondary)
    return replace(analysis, verdict=verdict, root_causes=rows)


def _first(these: Sequence[_T], others: Sequence[_T]) -> list[_T]:
    return list(dict.fromkeys([*these, *others]))
