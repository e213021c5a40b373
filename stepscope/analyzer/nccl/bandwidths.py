"""Bandwidths of collectives: calls that NCCL's inspector measured, and runs of nccl-tests."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from stepscope.core.documents.nccl import MEAN_OVER_SIZES, Bandwidth, BenchmarkRun, BenchmarkSize, NcclFinding
from stepscope.core.documents.nccl_facts import (
    BenchmarkBegun,
    Benchmarked,
    BenchmarkFailed,
    BenchmarkRank,
    BenchmarkRow,
    InspectorCall,
    LogEvent,
    LogPlace,
    Measured,
    OutOfBounds,
)
from stepscope.core.hardware.health import Severity
from stepscope.core.text.numbers import counted, listed, plain_size

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


_BenchmarkEvent = BenchmarkBegun | BenchmarkRank | BenchmarkRow | OutOfBounds | Measured | BenchmarkFailed | Benchmarked


@dataclass(slots=True)
class _RunBuilder:
    """What the lines so far tell about a run of nccl-tests."""

    place: LogPlace
    test: str = ""
    ranks: list[BenchmarkRank] = field(default_factory=list)
    rows: list[BenchmarkRow] = field(default_factory=list)
    num_wrong: int | None = None
    mean: Measured | None = None
    failures: list[BenchmarkFailed] = field(default_factory=list)

    def begins_again(self) -> bool:
        """Whether a first line of a run now belongs to the next one: processes of one run may each write theirs."""
        return bool(self.rows or self.mean is not None or self.failures)

    def build(self) -> BenchmarkRun:
        """The run in the report."""
        peak = max(self.rows, key=lambda row: max(row.bus_gbs, row.in_place_bus_gbs or 0.0), default=None)
        why = self._why_failed()
        is_ended = self.mean is not None or self.num_wrong is not None
        return BenchmarkRun(
            self.test.removesuffix("_mpi").removesuffix("_perf"),
            self.place.file,
            self.place.line,
            max((rank.rank + 1 for rank in self.ranks), default=None),  # not every one need be in the file
            sorted({rank.host for rank in self.ranks}),
            ", ".join(sorted({rank.gpu for rank in self.ranks})),
            [_size(row) for row in self.rows],
            None if peak is None else max(peak.bus_gbs, peak.in_place_bus_gbs or 0.0),
            None if peak is None else peak.bytes,
            None if self.mean is None else self.mean.bus_bandwidth_gbs,
            False if why else True if is_ended else None,
            why,
        )

    def _why_failed(self) -> str:
        if self.failures:
            errors = dict.fromkeys(f"{one.host}: {one.error}" for one in self.failures)
            return f"{listed(errors, 3)}"
        wrong = self.num_wrong or sum(row.wrong or 0 for row in self.rows)
        if wrong:
            return f"{counted(wrong, 'wrong value')}"
        return "the mean bandwidth is below the limit that the run was given" if self._is_too_slow() else ""

    def _is_too_slow(self) -> bool:
        return self.mean is not None and self.mean.is_too_low

    def num_copies(self) -> int:
        """Processes that each ran alone as rank 0."""
        return max(Counter(rank.rank for rank in self.ranks).values(), default=1)


def _size(row: BenchmarkRow) -> BenchmarkSize:
    return BenchmarkSize(
        row.bytes,
        row.type,
        row.reduction,
        row.microseconds,
        row.bus_gbs,
        row.in_place_microseconds,
        row.in_place_bus_gbs,
        row.wrong,
    )


def benchmark_runs(events: Iterable[LogEvent]) -> list[_RunBuilder]:
    """Runs of nccl-tests, each file's in order."""
    runs: list[_RunBuilder] = []
    current: _RunBuilder | None = None
    for event in events:
        if not isinstance(event, _BenchmarkEvent):
            continue
        is_new = current is None or current.place.file != event.place.file
        if is_new or (isinstance(event, BenchmarkBegun) and current is not None and current.begins_again()):
            current = _RunBuilder(event.place)
            runs.append(current)
        assert current is not None
        _note(current, event)
        if isinstance(event, Benchmarked):
            current = None
    return runs


def _note(run: _RunBuilder, event: _BenchmarkEvent) -> None:
    if isinstance(event, BenchmarkBegun | Benchmarked):
        run.test = event.test or run.test
    elif isinstance(event, BenchmarkRank):
        run.ranks.append(event)
    elif isinstance(event, BenchmarkRow):
        run.rows.append(event)
    elif isinstance(event, OutOfBounds):
        run.num_wrong = event.count
    elif isinstance(event, Measured):
        run.mean = event
    else:
        run.failures.append(event)


def benchmark_bandwidths(runs: Iterable[BenchmarkRun]) -> list[Bandwidth]:
    """One row per run of nccl-tests: the mean over its sizes."""
    return [
        Bandwidth("", run.test, run.num_ranks, None, MEAN_OVER_SIZES, 1, run.mean_bus_gbs)
        for run in runs
        if run.mean_bus_gbs is not None
    ]


def benchmark_findings(builders: Sequence[_RunBuilder]) -> Iterator[NcclFinding]:
    """Runs of nccl-tests that failed, had wrong values, did not end, or were no run of several ranks."""
    for builder in builders:
        run = builder.build()
        test = f"nccl-tests {run.test}" if run.test else "nccl-tests"
        place = builder.failures[0].place if builder.failures else builder.place
        if run.ok is False:
            yield NcclFinding(
                "benchmark_failed",
                Severity.CRITICAL,
                f"{test} failed: {run.why}; {_advice(builder)}",
                place.file,
                place.line,
            )
        elif run.ok is None:
            last = f" after {plain_size(run.sizes[-1].bytes)}" if run.sizes else ""
            message = f"{test} has no end in this file{last}: the file is cut off, or the run hangs"
            yield NcclFinding("benchmark_unfinished", Severity.WARNING, message, place.file, place.line)
        if run.has_missing_rows and run.ok is not False:
            known = f"only the mean is known, {run.mean_bus_gbs:,.2f} GB/s"
            if run.peak_bus_gbs is not None:
                known += f", which is above the best row read, {run.peak_bus_gbs:,.2f} GB/s"
            message = f"{test}: rows of its table are broken up by other lines or not in this file; {known}"
            yield NcclFinding("benchmark_rows_missing", Severity.INFO, message, place.file, place.line)
        if builder.num_copies() > 1:
            message = (
                f"{test}: {builder.num_copies()} processes are each rank 0 of a run of their own: build nccl-tests "
                "with MPI=1 to run over several processes"
            )
            yield NcclFinding("benchmark_without_mpi", Severity.WARNING, message, place.file, place.line)


def _advice(builder: _RunBuilder) -> str:
    if builder.failures:
        is_remote = any("remote process" in one.error for one in builder.failures)
        begun = "a peer failed or the network did: look at the other ranks" if is_remote else "look at the first error"
        told = " (the mean is of the sizes before it)" if builder.mean is not None else ""
        return f"{begun}, with NCCL_DEBUG=WARN{told}"
    if builder.mean is not None and builder.mean.is_too_low and not builder.num_wrong:
        return "compare transports and links with another machine"
    return "data is damaged on its way: run again with NCCL_P2P_DISABLE=1, and check IOMMU and ACS, links and GPUs"
