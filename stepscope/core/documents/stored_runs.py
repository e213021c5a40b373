"""Stored runs with their sizes (`stepscope.run-list/1`), which of them a prune deletes, and what an upload did."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum

from stepscope.core.vocabulary import Notice

RUN_LIST_SCHEMA = "stepscope.run-list/1"
PRUNE_SCHEMA = "stepscope.prune/1"
UPLOAD_REPORT_SCHEMA = "stepscope.upload-report/1"


class RunState(StrEnum):
    """Whether a stored run is still written."""

    RUNNING = "running"
    """a process has its files open, or wrote them a short while ago, or its latest attempt may still go on"""
    UPLOADING = "uploading"
    """a node has not finished its upload"""
    ENDED = "ended"
    """the latest attempt recorded its end"""
    KILLED = "killed"
    """the latest attempt recorded no end, and nothing has been written for a day"""
    UNRECORDED = "unrecorded"
    """there is no run.json that says so"""

    @property
    def is_written(self) -> bool:
        """Whether something may still write the run."""
        return self in (RunState.RUNNING, RunState.UPLOADING)


@dataclass(frozen=True, slots=True)
class RunBytes:
    """Run list document: bytes of a run by kind of file.

    Attributes:
        traces: traces/ and light/.
        views: views/, analysis.json and timeline.json, which an analysis makes again.
        telemetry: run.json, steps/, metrics/ and other small records.
        dumps: flight/, memory/ and nccl/.
        checkpoints: checkpoints/.
        other: files that are not part of a run.
    """

    traces: int = 0
    views: int = 0
    telemetry: int = 0
    dumps: int = 0
    checkpoints: int = 0
    other: int = 0

    @property
    def total(self) -> int:
        """Of all kinds."""
        return sum(getattr(self, each.name) for each in fields(self))

    def __add__(self, more: RunBytes) -> RunBytes:
        return RunBytes(*(getattr(self, each.name) + getattr(more, each.name) for each in fields(self)))


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Run list document: one stored run.

    Attributes:
        num_files: of the run.
        total_bytes: of all kinds together.
        name: of its folder.
        path: of it, or its URL.
        started_ns: start of the first attempt, ns since the epoch; None where run.json does not tell.
        written_ns: newest time of a file that training writes; None where the store tells none.
        world_size: number of ranks; None where unknown.
        why: what the state is known from.
        other_files: some of the files that are not part of a run.
    """

    name: str
    path: str
    state: RunState
    why: str
    started_ns: int | None
    written_ns: int | None
    world_size: int | None
    num_files: int
    bytes: RunBytes
    total_bytes: int
    other_files: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RunList:
    """The document `stepscope.run-list/1`: the runs in a folder or below a URL, the oldest first, by their last write.

    Attributes:
        bytes, total_bytes: of all runs.
    """

    where: str
    runs: list[StoredRun]
    bytes: RunBytes
    total_bytes: int
    warnings: list[Notice] = field(default_factory=list)
    schema: str = RUN_LIST_SCHEMA


@dataclass(frozen=True, slots=True)
class PrunedRun:
    """Prune document: one run that the rules name.

    Attributes:
        freed_bytes: that went with it; 0 where it was kept.
        why: it was kept; empty where it was not.
    """

    name: str
    path: str
    freed_bytes: int
    is_kept: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class PruneReport:
    """The document `stepscope.prune/1`.

    Attributes:
        is_dry_run: nothing was deleted: `runs` and the sizes are what a prune would do now.
        traces_only: the runs keep all but their traces.
        freed_bytes: of all runs.
        left_bytes: of the runs that are left.
    """

    where: str
    is_dry_run: bool
    traces_only: bool
    runs: list[PrunedRun]
    freed_bytes: int
    left_bytes: int
    warnings: list[Notice] = field(default_factory=list)
    schema: str = PRUNE_SCHEMA


@dataclass(frozen=True, slots=True)
class UploadedRun:
    """Upload report: the part of a run that one folder holds.

    Attributes:
        url: of the run.
        node: name of its record in uploads/.
        num_files, bytes: that are in the store.
        is_whole: all of the folder has arrived; False while a process still writes it.
        freed_bytes: that were deleted here because they have arrived.
    """

    run: str
    url: str
    node: str
    num_files: int
    bytes: int
    is_whole: bool
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class UploadReport:
    """The document `stepscope.upload-report/1`."""

    where: str
    runs: list[UploadedRun]
    warnings: list[Notice] = field(default_factory=list)
    schema: str = UPLOAD_REPORT_SCHEMA
