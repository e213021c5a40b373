"""Tasks of a fan-out: one trace file in, the views of its ranks out.

Everything here can travel to another process or machine and back. Also what workers of any cluster run, and the errors
when they cannot.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from stepscope import __version__
from stepscope.analyzer.rank import view_rank
from stepscope.analyzer.rank_view import RankView
from stepscope.core.documents.evidence import Notice
from stepscope.core.errors import DataError, StepscopeError, UnreachableError, UsageError
from stepscope.core.text.numbers import counted
from stepscope.trace.columns import TraceColumns
from stepscope.workflow.inputs.trace_files import open_ranks

MOST_RANKS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class FileTask:
    """One file to view.

    Attributes:
        rank: what to call its rank where the file does not tell; None leaves such a file for later.
        whole_file: as in view_rank.
        since_ns: traces that end before belong to another attempt.
    """

    path: str
    rank: int | None = None
    whole_file: bool = False
    since_ns: int | None = None


@dataclass(slots=True)
class FileViews:
    """What became of a task.

    Attributes:
        views: one a rank.
        notices: what was assumed.
        tells_rank: False for a file that waits to be given one; it has no views then.
        error: why it, or the rest of it, cannot be used.
    """

    task: FileTask
    views: list[RankView] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    tells_rank: bool = True
    error: StepscopeError | None = None


FileMap = Callable[[Callable[[FileTask], FileViews], Sequence[FileTask]], Iterable[FileViews]]
"""Applies a function to all tasks, here or elsewhere, and yields the results in any order."""


def view_file(task: FileTask) -> FileViews:
    """Read one file and book each of its ranks; expected errors become part of the result."""
    found = FileViews(task)
    try:
        traces = open_ranks(task.path)
        found.tells_rank = traces[0].header.rank is not None
        if not found.tells_rank and task.rank is None:
            return found
        if task.since_ns is not None and max(int(trace.end_ns.max()) for trace in traces) < task.since_ns:
            raise DataError("was recorded by an earlier attempt of this run", where=task.path)
        found.notices += _merged(traces)
        for trace in traces:
            rank = task.rank if trace.header.rank is None else trace.header.rank
            found.views.append(view_rank(trace, rank or 0, whole_file=task.whole_file))
    except StepscopeError as error:
        found.error = error
    return found


def _merged(traces: list[TraceColumns]) -> list[Notice]:
    """Says of a file of several ranks which they are."""
    if len(traces) == 1:
        return []
    shown = ", ".join(f"rank {trace.header.rank} = {trace.header.part}" for trace in traces[:MOST_RANKS_SHOWN])
    more = ", ..." if len(traces) > MOST_RANKS_SHOWN else ""
    return [Notice("merged_file", f"{traces[0].header.path}: holds {len(traces)} ranks: {shown}{more}")]


LOOK_EVERY_SECONDS = 2.0
"""How often a cluster that gives no results is asked whether it is still there."""
WORKERS_WITHIN_SECONDS = 120.0
"""A cluster that grows on demand has its first worker by then (a machine of a cloud starts in one to two minutes)."""

VERSION_OF = f"{__name__}:__version__"
"""For `pkgutil.resolve_name`, which every worker has: a function of ours could not even arrive at one without us. This
module brings all that reading needs."""


def on_worker(work: Callable[[FileTask], FileViews], task: FileTask) -> FileViews:
    """The work, on a machine that need not see the files of the one who asks."""
    if "://" not in task.path and not os.path.exists(task.path):
        where_next = "put the traces where all workers find them: a shared file system or an object store"
        what = f"does not exist on the worker {socket.gethostname()}"
        return FileViews(task, error=DataError(what, where=task.path, what_next=where_next))
    return work(task)


def check_versions(engine: str, found: Iterable[tuple[str, str | BaseException]]) -> None:
    """Views travel between equal versions only.

    Args:
        engine: for the message.
        found: a worker and its version, or why it could not tell.

    Raises:
        UsageError: one lacks stepscope or has another version.
    """
    for worker, version in found:
        if version != __version__:
            has = f"has stepscope {version}" if isinstance(version, str) else f"cannot import stepscope ({version})"
            raise UsageError(
                f"the {engine} worker {worker} {has}; this is stepscope {__version__}",
                what_next=f'install there: pip install "stepscope[analyze]=={__version__}"',
            )


class KilledError(DataError):
    """Reading the file ends its workers."""


def killed(task: FileTask, engine: str, why: object) -> FileViews:
    """A file whose workers died on it; as with local processes the others are analysed all the same."""
    what = f"the {engine} workers that read it died ({why})"
    return FileViews(task, error=KilledError(what, where=task.path, what_next="give the workers more memory"))


def lost(engine: str, address: str, num_missing: int) -> UnreachableError:
    """The cluster went away."""
    return UnreachableError(
        f"the {engine} cluster was lost with {counted(num_missing, 'file')} to go",
        where=address,
        what_next="see whether it is up, and run again",
    )


def no_workers(engine: str, address: str, num_missing: int) -> UnreachableError:
    """The cluster has nobody to do the work."""
    return UnreachableError(
        f"the {engine} cluster has no workers, with {counted(num_missing, 'file')} to go",
        where=address,
        what_next="start some, and run again",
    )
