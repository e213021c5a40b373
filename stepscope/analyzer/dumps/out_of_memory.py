"""Out of memory by the snapshots of a run, if the job ended by it; memory that grows, by those of other jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stepscope.analyzer.dumps.records import Ending, Finding, JobRecords
from stepscope.core.documents.analysis import EvidenceLayer
from stepscope.core.documents.memory import MemoryReport, OomCause, OutOfMemory, Remedy, own_call
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
    """Report on a memory snapshot of one rank; `time_ns`: of the failure, else of the snapshot."""

    rank: int
    report: MemoryReport
    time_ns: int | None


def memory_finding(snapshots: Sequence[RankSnapshot], records: JobRecords) -> Finding:
    """What memory snapshots say of a job: it ran out of memory and ended, or ran out earlier, or its memory grows."""
    num_snapshots = counted(len(snapshots), "memory snapshot")
    if foreign := [one.rank for one in snapshots if one.rank >= records.world_size]:
        size = counted(records.world_size, "rank")
        why = f"{num_snapshots} of another job: of {ranks_words(foreign)}, and this one has {size}"
        return Finding(EvidenceLayer(MEMORY, False, None, why), [Notice("memory_snapshots", f"{why}; not used")])
    failed = [(one, one.report.oom) for one in snapshots if one.report.oom is not None]
    if not failed:
        return Finding(EvidenceLayer(MEMORY, True, None, f"{num_snapshots}, none out of memory"), _growth(snapshots))
    earlier = [one for one, _ in failed if records.is_of_earlier_attempt(one.time_ns)]
    survived = [one for one, _ in failed if one not in earlier and _went_on(one, records)]
    last = [(one, oom) for one, oom in failed if one not in earlier and one not in survived]
    notices = [*_out_earlier(earlier, "in an earlier attempt"), *_out_earlier(survived, "and trained on")]
    if not last:
        agrees = False if survived else None
        return Finding(EvidenceLayer(MEMORY, False, agrees, notices[-1].message), notices)
    first, oom = min(last, key=lambda one: (one[0].time_ns is None, one[0].time_ns or 0, one[0].rank))
    ranks = sorted({one.rank for one, _ in last})
    return Finding(EvidenceLayer(MEMORY, True, True, num_snapshots), notices, _ending(first, oom, ranks, len(last)))


def _went_on(one: RankSnapshot, records: JobRecords) -> bool:
    if one.time_ns is None or records.may_have_gone_on([one.rank]):
        return records.may_have_gone_on([one.rank])
    return records.went_on(one.rank, one.time_ns)


def _out_earlier(snapshots: Sequence[RankSnapshot], when: str) -> list[Notice]:
    ranks = sorted({one.rank for one in snapshots})
    return [Notice("memory_snapshots", f"{ranks_words(ranks)} ran out of GPU memory {when}")] if ranks else []


def _growth(snapshots: Sequence[RankSnapshot]) -> list[Notice]:
    grown = [(one, growth) for one in snapshots if (growth := one.report.growth) is not None]
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


def _ending(one: RankSnapshot, oom: OutOfMemory, ranks: list[int], num_snapshots: int) -> Ending:
    phase = "" if oom.phase == "unknown" else f" in {oom.phase}"
    of_gpu = f"GPU {one.report.device}"
    return Ending(
        Cause.OUT_OF_MEMORY,
        [_REASONS[oom.cause]],
        ranks,
        _CONFIDENCE,
        f"{oom.cause.value.replace('_', ' ')}{phase}: rank {one.rank} asked for {plain_size(oom.requested_bytes)} on "
        f"{of_gpu}, where torch had {plain_size(oom.allocated_bytes)} allocated",
        [
            Evidence("memory_snapshots", num_snapshots, "memory snapshots", ranks=ranks),
            *(Evidence(f"memory_snapshot: {text}", 1, "ranks", ranks=[one.rank]) for text in oom.evidence),
        ],
        [_action(remedy) for remedy in one.report.remedies[:_MAX_ACTIONS]],
    )


def _action(remedy: Remedy) -> str:
    return remedy.change if remedy.saved_bytes is None else f"{remedy.change}: up to {plain_size(remedy.saved_bytes)}"
