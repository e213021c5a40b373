"""Report on all NCCL files of a job: facts, and findings with causes first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from stepscope.analyzer.nccl.bandwidths import (
    benchmark_bandwidths,
    benchmark_findings,
    benchmark_runs,
    inspector_bandwidths,
)
from stepscope.analyzer.nccl.causes import causes_of
from stepscope.analyzer.nccl.communicators import (
    CommunicatorIndex,
    different_networks,
    index_communicators,
    not_joined,
    slow_joins,
)
from stepscope.analyzer.nccl.failures import card_errors, trainer_findings
from stepscope.analyzer.nccl.machines import devices_of, machines_of, planned_paths, shared_cards, slow_links
from stepscope.analyzer.nccl.networks import (
    different_card_counts,
    limiting_settings,
    networks_of,
    settings_of,
    topology_files,
)
from stepscope.analyzer.nccl.rank_status import flag_findings, ras_findings, summaries
from stepscope.analyzer.nccl.timeouts import stuck_watchdogs, timeouts
from stepscope.analyzer.nccl.transports import no_direct_memory, slow_transports, transports_of
from stepscope.core.documents.nccl import NOTHING_CHECKED, NcclFinding, NcclReport
from stepscope.core.documents.nccl_facts import (
    BenchmarkFailed,
    BenchmarkRank,
    CallFailed,
    Driver,
    InspectorCall,
    LogEvent,
    Version,
    host_of,
)
from stepscope.core.documents.nccl_rank_status import HangFlags, RasStatus
from stepscope.core.hardware.health import Severity
from stepscope.core.text.numbers import listed
from stepscope.core.vocabulary import Notice


def explain_nccl(
    events: Sequence[LogEvent],
    calls: Iterable[InspectorCall] = (),
    statuses: Sequence[RasStatus] = (),
    pages: Sequence[HangFlags] = (),
) -> NcclReport:
    """Diagnose a job from NCCL log events (each file's in order), inspector calls, RAS answers, xpu_timer pages."""
    index = index_communicators(events)
    transports = transports_of(events, index)
    machines, networks, settings = machines_of(events), networks_of(events), settings_of(events)
    runs = benchmark_runs(events)
    benchmarks = [run.build() for run in runs]
    ended = timeouts(events)
    findings = [
        *causes_of(events, index),
        *benchmark_findings(runs),
        *slow_transports(transports, events),
        *not_joined(index.communicators, events),
        *different_networks(index, events),
        *different_card_counts(networks, events, index.machines()),
        *card_errors(events),
        *ended,
        *stuck_watchdogs(events),
        *ras_findings(statuses, has_timeouts=bool(ended)),
        *flag_findings(pages),
        *trainer_findings(events),
        *slow_joins(index),
        *slow_links(machines, topology_files(events)),
        *shared_cards(machines),
        *_different_versions(events, index),
        *no_direct_memory(events, transports),
        *limiting_settings(settings),
    ]
    findings.sort(key=lambda finding: -finding.severity.rank)
    versions = _versions(events)
    processes = {event.place.process for event in events}
    hosts = [host for process in processes if (host := host_of(process))]
    report = NcclReport(
        versions,
        index.communicators,
        transports,
        [*inspector_bandwidths(calls), *benchmark_bandwidths(benchmarks)],
        devices_of(machines),
        planned_paths(events),
        findings,
        sorted({*hosts, *_benchmark_hosts(events)}),
        len(hosts),
        sorted({_cuda_version(event.version) for event in events if isinstance(event, Driver)}),
        networks,
        settings,
        benchmarks,
        summaries(statuses),
        list(_foreign_answers(statuses, versions)),
    )
    if not any(page.flagged or page.clear for page in pages):
        report.warnings.extend(_nothing_checked(report))
    return report


def _nothing_checked(report: NcclReport) -> Iterator[Notice]:
    """A report of facts that nothing was compared with: that it has no finding means nothing."""
    is_checked = (
        report.communicators
        or report.transports
        or report.bandwidths
        or report.devices
        or report.ras
        or any(run.ok is not None for run in report.benchmarks)
        or any(finding.code != "setting" for finding in report.findings)
    )
    if is_checked:
        return
    has = {
        "NCCL's version": report.versions,
        "the driver's": report.cuda_drivers,
        "settings": report.settings,
        "the network's name": report.networks,
        "planned paths": report.planned,
    }
    found = [name for name, facts in has.items() if facts] or ["lines of other programs"]
    message = (
        f"nothing could be checked: these files have only {listed(found, len(found))}; run the job with "
        "NCCL_DEBUG=INFO and give its whole log"
    )
    yield Notice(NOTHING_CHECKED, message)


def _benchmark_hosts(events: Iterable[LogEvent]) -> set[str]:
    return {event.host for event in events if isinstance(event, BenchmarkRank | BenchmarkFailed)}


def _cuda_version(number: int) -> str:
    """13000 is 13.0."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _versions(events: Iterable[LogEvent]) -> list[str]:
    """Versions that the log names; torch and nccl-tests write "2.28.9" where NCCL writes "2.28.9+cuda13.0"."""
    found = {event.version for event in events if isinstance(event, Version | CallFailed)} - {""}
    return sorted(one for one in found if not any(other.startswith(f"{one}+") for other in found))


def _different_versions(events: Sequence[LogEvent], index: CommunicatorIndex) -> Iterator[NcclFinding]:
    """Ranks of one communicator with different versions; of unknown communicators they may be different jobs."""
    communicators: dict[str, set[str]] = {}
    for number, (name, _) in index.at.items():
        communicators.setdefault(events[number].place.process, set()).add(name)
    first: dict[str, Version] = {}
    by_communicator: dict[str, set[str]] = {}
    for event in events:
        if isinstance(event, Version) and event.place.process:
            first.setdefault(event.version, event)
            for name in communicators.get(event.place.process, {""}):
                by_communicator.setdefault(name, set()).add(event.version)
    different = {name for name, versions in by_communicator.items() if len(versions) > 1}
    if different:
        place = list(first.values())[1].place
        versions = ", ".join(sorted(first))
        if different == {""}:
            severity = Severity.WARNING
            message = f"NCCL {versions} in these files: of different jobs, or of ranks that load different versions"
        else:
            severity = Severity.CRITICAL
            message = f"ranks load different versions of NCCL: {versions}"
        yield NcclFinding("version_mismatch", severity, message, place.file, place.line)


def _foreign_answers(statuses: Iterable[RasStatus], versions: Sequence[str]) -> Iterator[Notice]:
    """RAS answers of another version of NCCL than the log's: of another job, or of another time."""
    plain = {version.partition("+")[0] for version in versions}
    for status in statuses:
        if status.version and plain and status.version.partition("+")[0] not in plain:
            message = (
                f"{status.file}: the answer of RAS is of NCCL {status.version}, the log of {listed(sorted(plain))}: "
                "they may be of different jobs"
            )
            yield Notice("foreign_ras", message)
            return
