"""Which ranks does a job's analysis stand on? Each trace is read and booked once; what does not fit is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from stepscope.analyzer.rank import view_rank
from stepscope.analyzer.rank_view import RankView
from stepscope.core.analysis import Notice
from stepscope.core.errors import DataError, TruncatedTraceError
from stepscope.trace.columns import TraceColumns
from stepscope.workflow.trace_files import open_ranks

MOST_RANKS_SHOWN = 8
Progress = Callable[[int, int, str], None]
"""Called as (files done, files in all, the file being read)."""


@dataclass(slots=True)
class RankViews:
    """The views by rank, and what was left out.

    Attributes:
        views: one a rank.
        notices: why a file was not used, or what was assumed.
        num_truncated: files left out because they end too early.
    """

    views: dict[int, RankView] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)
    num_truncated: int = 0


def view_files(
    paths: list[str], *, whole_file: bool, since_ns: int | None = None, on_progress: Progress | None = None
) -> RankViews:
    """The per-rank half over all files, one at a time.

    Files that do not tell their rank come last and get the lowest free ranks, in order.

    Args:
        paths: traces of one job.
        whole_file: as in view_rank.
        since_ns: start of the job's last attempt; traces from before belong to an earlier one.
        on_progress: told before each file.

    Raises:
        DataError: no file can be used, or the files cannot be of one job.
    """
    found = RankViews()
    errors: list[DataError] = []
    nameless: list[str] = []
    queue = list(paths)
    for done, path in enumerate(queue):
        if on_progress is not None:
            on_progress(done - len(nameless), len(paths), path)
        try:
            traces = open_ranks(path)
            if traces[0].header.rank is None and len(paths) > 1 and done < len(paths):
                nameless.append(path)
                queue.append(path)
                continue
            if since_ns is not None and max(int(trace.end_ns.max()) for trace in traces) < since_ns:
                raise DataError("was recorded by an earlier attempt of this run", where=path)
            found.notices += _merged(traces)
            for trace in traces:
                _take(found, trace, whole_file=whole_file)
        except _MixedJobsError:
            raise
        except DataError as error:
            errors.append(error)
            found.num_truncated += isinstance(error, TruncatedTraceError)
            found.notices.append(Notice("unusable_file", str(error)))
    if not found.views:
        raise _none_usable(errors, len(paths))
    _leave_out_hosts_only(found)
    _leave_out_other_times(found, nameless)
    return found


def _merged(traces: list[TraceColumns]) -> list[Notice]:
    """Says of a file of several ranks which they are."""
    if len(traces) == 1:
        return []
    shown = ", ".join(f"rank {trace.header.rank} = {trace.header.part}" for trace in traces[:MOST_RANKS_SHOWN])
    more = ", ..." if len(traces) > MOST_RANKS_SHOWN else ""
    return [Notice("merged_file", f"{traces[0].header.path}: holds {len(traces)} ranks: {shown}{more}")]


class _MixedJobsError(DataError):
    """The files are not of one job."""


def _take(found: RankViews, trace: TraceColumns, *, whole_file: bool) -> None:
    """Book the trace under its rank.

    Raises:
        DataError: it cannot be booked, or is a copy of one that is.
    """
    rank = _rank(trace, found)
    view = view_rank(trace, rank, whole_file=whole_file)
    known = found.views.get(rank)
    if known is None:
        found.views[rank] = view
        return
    if (known.window.start_ns, known.window.end_ns) == (view.window.start_ns, view.window.end_ns):
        raise DataError(f"is a copy of {known.header.path}", where=trace.header.path)
    raise _MixedJobsError(
        f"says it is rank {rank}, and so does {known.header.path}",
        where=trace.header.path,
        what_next="give the files of one job, one a rank",
    )


def _rank(trace: TraceColumns, found: RankViews) -> int:
    """The rank the trace tells, else the lowest that is free."""
    if trace.header.rank is not None:
        return trace.header.rank
    rank = next(number for number in range(len(found.views) + 1) if number not in found.views)
    if found.views or rank:
        assumed = f"{trace.header.path}: does not tell its rank; taken as rank {rank} by order"
        found.notices.append(Notice("rank_assumed", assumed))
    return rank


def _none_usable(errors: list[DataError], num_files: int) -> DataError:
    if len(errors) == 1:
        return errors[0]
    first = errors[0] if errors else None
    return DataError(
        f"none of {num_files} files can be used; the first: {first}", what_next="give the traces of torch.profiler"
    )


def _leave_out_hosts_only(found: RankViews) -> None:
    """Beside ranks with device activities, one without any was recorded without CUDA: its ledger is of another kind."""
    if len({view.on_device for view in found.views.values()}) == 1:
        return
    for rank, view in list(found.views.items()):
        if not view.on_device:
            del found.views[rank]
            lacks = f"{view.header.path}: holds no device activities, the other ranks do; left out"
            found.notices.append(Notice("unusable_file", lacks))


def _leave_out_other_times(found: RankViews, nameless: list[str]) -> None:
    """Ranks of one job record at the same time; on hosts whose clocks may differ this cannot be judged.

    Raises:
        DataError: files that do not even tell their rank do not overlap.
    """
    views = found.views
    if len({view.header.host_name for view in views.values()}) > 1:
        return
    latest = max(views.values(), key=lambda view: view.window.end_ns)
    others = {rank: view for rank, view in views.items() if not _overlap(view, latest)}
    for rank, view in others.items():
        if view.header.path in nameless or latest.header.path in nameless:
            raise _MixedJobsError(
                f"does not overlap in time with {latest.header.path}",
                where=view.header.path,
                what_next="give the files of one job, one a rank",
            )
        del views[rank]
        apart = f"{view.header.path}: does not overlap in time with {latest.header.path}; left out"
        found.notices.append(Notice("other_time", apart))


def _overlap(a: RankView, b: RankView) -> bool:
    return a.window.start_ns < b.window.end_ns and b.window.start_ns < a.window.end_ns
