"""Out of memory by the snapshots of a run, if the job ended by it; memory that grows, by those of other jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stepscope.analyzer.dumps.records import Ending, Finding, JobRecords
from stepscope.core.documents.analysis import EvidenceLayer
from stepscope.core.documents.memory import MemoryReport, OomCause, OutOfMemoryNote, Remedy, own_call
from stepscope.core.text.numbers import counted, plain_size, ranks_words
from stepscope.core.vocabulary import Cause, Evidence, Notice, Reason

MEMORY = "memory"
_CONFIDENCE = 0.95
_MAX_ACTIONS = 3
_MIN_GROWTH = 1 << 20
"""Bytes a step from which growth is told: it takes a GPU of 80 GB in less than 100,000 steps."""

_REASONS = {
    OomCause.CAPACITY: Reason.CAPACITY,
    OomCause.FRAGMENTATION: Reason.FRAGMENTATION,
    OomCause.PRIVATE_POOLS: Reason.PRIVATE_POOLS,
    OomCause.LEAK: Reason.LEAK,
    OomCause.OTHER_PROCESS: Reason.OTHER_PROCESS,
}


class RankSnapshot(NamedTuple):
    """Memory snapshot of one rank.

    Attributes:
        report: on it; None where it was not read.
        time_ns: of the failure, else of the snapshot; None where unknown.
        note: what `profile()` wrote of the failure beside it.
    """

    rank: int
    report: MemoryReport | None
    time_ns: int | None
    note: OutOfMemoryNote | None = None

    @property
    def is_failure(self) -> bool:
        """Whether memory ran out."""
        return self.report is None or self.report.oom is not None


def memory_finding(snapshots: Sequence[RankSnapshot], records: JobRecords) -> Finding:
    """What memory snapshots say of a job: it ran out of memory and ended, or ran out earlier, or its memory grows."""
    num_snapshots = counted(len(snapshots), "memory snapshot")
    if foreign := [one.rank for one in snapshots if one.rank >= records.world_size]:
        size = counted(records.world_size, "rank")
        why = f"{num_snapshots} of another job: of {ranks_words(foreign)}, and this one has {size}"
        return Finding(EvidenceLayer(MEMORY, False, None, why), [Notice("memory_snapshots", f"{why}; not used")])
    failed = [one for one in snapshots if one.is_failure]
    if not failed:
        return Finding(EvidenceLayer(MEMORY, True, None, f"{num_snapshots}, none out of memory"), _growth(snapshots))
    earlier = [one for one in failed if records.is_of_earlier_attempt(one.time_ns)]
    survived = [one for one in failed if one not in earlier and _went_on(one, records)]
    last = [one for one in failed if one not in earlier and one not in survived]
    notices = [*_out_earlier(earlier, "in an earlier attempt"), *_out_earlier(survived, "and trained on")]
    if not last:
        agrees = False if survived else None
        return Finding(EvidenceLayer(MEMORY, False, agrees, notices[-1].message), notices)
    return Finding(EvidenceLayer(MEMORY, True, True, num_snapshots), notices, _ending(last))


def _went_on(one: RankSnapshot, records: JobRecords) -> bool:
    if one.time_ns is None or records.may_have_gone_on([one.rank]):
        return records.may_have_gone_on([one.rank])
    return records.went_on_ns(one.rank, one.time_ns) is not None


def _out_earlier(snapshots: Sequence[RankSnapshot], when: str) -> list[Notice]:
    ranks = sorted({one.rank for one in snapshots})
    return [Notice("memory_snapshots", f"{ranks_words(ranks)} ran out of GPU memory {when}")] if ranks else []


def _growth(snapshots: Sequence[RankSnapshot]) -> list[Notice]:
    grown = [(one, growth) for one in snapshots if one.report is not None and (growth := one.report.growth)]
    if not grown or max(growth.bytes_per_step for _, growth in grown) < _MIN_GROWTH:
        return []
    one, growth = max(grown, key=lambda pair: pair[1].bytes_per_step)
    place = own_call(growth.stack)
    where = f", allocated at {place}" if place else ""
    text = (
        f"GPU memory of rank {one.rank} grows: each of {counted(growth.num_steps, 'step')} keeps "
        f"{plain_size(growth.bytes_per_step)}{where}"
    )
    return [Notice("memory_grows", text)]


def _ending(failed: Sequence[RankSnapshot]) -> Ending:
    """Why memory ran out on the first rank of which that is known, else on the first."""
    ordered = sorted(failed, key=lambda one: (one.time_ns is None, one.time_ns or 0, one.rank))
    one = next((one for one in ordered if one.report is not None), ordered[0])
    ranks = sorted({one.rank for one in failed})
    seen = Evidence("memory_snapshots", len(failed), "memory snapshots", ranks=ranks)
    report, note = one.report, one.note
    if report is None or report.oom is None:
        requested = (
            "" if note is None or note.requested_bytes is None else f" asked for {plain_size(note.requested_bytes)}"
        )
        phase = "" if note is None or note.phase in (None, "unknown") else f" in {note.phase}"
        summary = f"rank {one.rank}{requested}{phase}; its snapshot was not read"
        action = "see what held the memory: stepscope memory RUN"
        return Ending(Cause.OUT_OF_MEMORY, [], ranks, _CONFIDENCE, summary, [seen], [action])
    oom = report.oom
    phase = "" if oom.phase == "unknown" else f" in {oom.phase}"
    return Ending(
        Cause.OUT_OF_MEMORY,
        [_REASONS[oom.cause]],
        ranks,
        _CONFIDENCE,
        f"{oom.cause.value.replace('_', ' ')}{phase}: rank {one.rank} asked for {plain_size(oom.requested_bytes)} on "
        f"GPU {report.device}, where torch had {plain_size(oom.allocated_bytes)} allocated",
        [seen, *(Evidence(f"memory_snapshot: {text}", 1, "ranks", ranks=[one.rank]) for text in oom.evidence)],
        [_action(remedy) for remedy in report.remedies[:_MAX_ACTIONS]],
    )


def _action(remedy: Remedy) -> str:
    return remedy.change if remedy.saved_bytes is None else f"{remedy.change}: up to {plain_size(remedy.saved_bytes)}"
