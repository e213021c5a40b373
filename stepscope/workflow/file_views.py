"""What does one trace file give? The per-rank half as a pure map over files: small values in, small values out.

Everything here can travel to another process or machine and back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from stepscope.analyzer.rank import view_rank
from stepscope.analyzer.rank_view import RankView
from stepscope.core.analysis import Notice
from stepscope.core.errors import DataError, StepscopeError
from stepscope.trace.columns import TraceColumns
from stepscope.workflow.trace_files import open_ranks

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
