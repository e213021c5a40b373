"""Tasks of a fan-out: one trace file in, the views of its ranks out; and the errors of a cluster's workers.

Tasks and results can travel to another process or machine and back.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from stepscope import __version__
from stepscope.analyzer.collectives.openings import Beginning
from stepscope.analyzer.rank import view_rank
from stepscope.analyzer.rank_view import RankView
from stepscope.core.errors import DataError, StepscopeError, UnreachableError, UsageError
from stepscope.core.text.numbers import counted
from stepscope.core.vocabulary import Notice
from stepscope.trace.columns import RankSource, TraceColumns, TraceHeader
from stepscope.trace.formats.foreign_traces import tools_for
from stepscope.workflow.inputs.archives import split_address
from stepscope.workflow.inputs.trace_files import open_stamped
from stepscope.workflow.inputs.trace_stamps import TraceStamp

MAX_RANKS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class FileTask:
    """Task of a fan-out: one trace file to view.

    Attributes:
        rank: of a file whose trace does not give its rank; None leaves such a file for later.
        rank_source: where that rank comes from.
        whole_file, begins: as in view_rank.
        since_ns: traces that end earlier belong to another attempt.
    """

    path: str
    rank: int | None = None
    whole_file: bool = False
    since_ns: int | None = None
    rank_source: RankSource = RankSource.ORDER
    begins: Beginning | None = None


@dataclass(slots=True)
class FileViews:
    """Result of a fan-out's task: views of the ranks in a trace file.

    Attributes:
        views: one per rank.
        tells_rank: False for a file whose trace does not give its rank and that was given none; it has no views.
        error: why the file, or the rest of it, cannot be used.
        process: host name and id of the process that was recorded; None where unknown.
        span_ns: start of its first event and end of its last one.
        stamp: of the file as it was read; None where it has none, or changed meanwhile.
    """

    task: FileTask
    views: list[RankView] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    tells_rank: bool = True
    error: StepscopeError | None = None
    process: tuple[str | None, int] | None = None
    span_ns: tuple[int, int] = (0, 0)
    stamp: TraceStamp | None = None


FileMap = Callable[[Callable[[FileTask], FileViews], Sequence[FileTask]], Iterable[FileViews]]
"""Applies a function to all tasks, here or elsewhere, and yields the results in any order."""


_BY_TRACE = (RankSource.HEADER, RankSource.COLLECTIVES)
"""Ranks that the trace itself gives; names of files are read together, as a name's rank may be that of a replica."""


def view_file(task: FileTask) -> FileViews:
    """Read one file into a view per rank; expected errors become part of the result."""
    result = FileViews(task)
    try:
        traces, result.stamp = open_stamped(task.path)
        header = traces[0].header
        result.process = None if header.process_id is None else (header.host_name, header.process_id)
        result.span_ns = _span(traces)
        result.tells_rank = len(traces) > 1 or header.rank_source in _BY_TRACE
        if not result.tells_rank and task.rank is None:
            return result
        check_attempt(task, result.span_ns)
        _check_device(header)
        result.notices += merged_ranks([trace.header for trace in traces])
        for trace in traces:
            if not result.tells_rank:
                header = replace(trace.header, rank=task.rank, rank_source=task.rank_source)
                trace = trace.with_header(header)
            result.views.append(
                view_rank(trace, trace.header.rank or 0, whole_file=task.whole_file, begins=task.begins)
            )
    except StepscopeError as error:
        result.error = error
    return result


def check_attempt(task: FileTask, span_ns: tuple[int, int]) -> None:
    """Check that a file is of the attempt that the fan-out's task asks for.

    Raises:
        DataError: it is of an earlier one.
    """
    if task.since_ns is not None and span_ns[1] < task.since_ns:
        raise DataError("was recorded by an earlier attempt of this run", where=task.path)


def _check_device(header: TraceHeader) -> None:
    """Check that the calls of the recorded device are known.

    Raises:
        DataError: blocked time could not be told from idle time, nor the device's work from the host's.
    """
    if header.accelerator is not None:
        what = f"records {header.accelerator}; only NVIDIA and AMD GPUs and CPUs are analyzed"
        raise DataError(what, where=header.path, what_next=tools_for(header.accelerator))


def _span(traces: Sequence[TraceColumns]) -> tuple[int, int]:
    return min(int(trace.start_ns.min()) for trace in traces), max(int(trace.end_ns.max()) for trace in traces)


def merged_ranks(headers: Sequence[TraceHeader]) -> list[Notice]:
    """A notice that names the ranks of a trace file of several."""
    if len(headers) == 1:
        return []
    shown = ", ".join(f"rank {header.rank} = {header.part}" for header in headers[:MAX_RANKS_SHOWN])
    more = ", ..." if len(headers) > MAX_RANKS_SHOWN else ""
    return [Notice("merged_file", f"{headers[0].path}: holds {len(headers)} ranks: {shown}{more}")]


POLL_SECONDS = 2.0
"""A cluster that gives no results is checked this often."""
WORKERS_WITHIN_SECONDS = 120.0
"""A cluster that grows on demand has its first worker by then (a machine of a cloud starts in one to two minutes)."""

VERSION_OF = f"{__name__}:__version__"
"""For `pkgutil.resolve_name`, which every worker has: a function of ours could not be unpickled without stepscope. This
module imports all that reading needs."""


def on_worker(work: Callable[[FileTask], FileViews], task: FileTask) -> FileViews:
    """Do a fan-out's task on a cluster's worker, which may not see the caller's files."""
    if "://" not in task.path and not os.path.exists(split_address(task.path)[0]):
        what_next = "put the traces where all workers find them: a shared file system or an object store"
        what = f"does not exist on the worker {socket.gethostname()}"
        return FileViews(task, error=DataError(what, where=task.path, what_next=what_next))
    return work(task)


class KilledError(DataError):
    """Reading a trace file ends a cluster's workers."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Dask or Ray cluster of a fan-out, and the errors of its workers."""

    engine: str
    address: str

    def check_versions(self, versions: Iterable[tuple[str, str | BaseException]]) -> None:
        """Check that views can travel: between equal versions only.

        Args:
            versions: a worker and its version, or why it has none.

        Raises:
            UsageError: one lacks stepscope or has another version.
        """
        for worker, version in versions:
            if version != __version__:
                has = f"has stepscope {version}" if isinstance(version, str) else f"cannot import stepscope ({version})"
                raise UsageError(
                    f"the {self.engine} worker {worker} {has}; this is stepscope {__version__}",
                    what_next=f'install there: pip install "stepscope[analyze]=={__version__}"',
                )

    def killed(self, task: FileTask, why: str) -> FileViews:
        """Result of a file whose workers died; as with local processes the others are analysed all the same."""
        what = f"the {self.engine} workers that read it died ({why})"
        return FileViews(task, error=KilledError(what, where=task.path, what_next="give the workers more memory"))

    def lost(self, num_missing: int) -> UnreachableError:
        """The error of a cluster that went away."""
        what = f"the {self.engine} cluster was lost with {counted(num_missing, 'file')} to go"
        return UnreachableError(what, where=self.address, what_next="check that it is up, and run again")

    def no_workers(self, num_missing: int) -> UnreachableError:
        """The error of a cluster without workers."""
        what = f"the {self.engine} cluster has no workers, with {counted(num_missing, 'file')} to go"
        return UnreachableError(what, where=self.address, what_next="start some, and run again")


class WorkerWatch:
    """Waits for a cluster that gives a fan-out no results, while it is up and has workers or may get some."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._seen = time.monotonic()

    def check(self, num_missing: int, *, is_up: bool, has_workers: Callable[[], bool]) -> None:
        """Check the cluster once.

        Raises:
            UnreachableError: it was lost, or has had no workers for WORKERS_WITHIN_SECONDS.
        """
        if not is_up:
            raise self._cluster.lost(num_missing)
        if has_workers():
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > WORKERS_WITHIN_SECONDS:
            raise self._cluster.no_workers(num_missing)
