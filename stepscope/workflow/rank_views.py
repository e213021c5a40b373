"""Which ranks does a job's analysis stand on? Each trace is read and booked once; what does not fit is said."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from stepscope.analyzer.rank_view import RankView
from stepscope.core.analysis import Notice
from stepscope.core.errors import DataError, TruncatedTraceError, none_usable
from stepscope.workflow.file_views import FileMap, FileTask, FileViews, view_file
from stepscope.workflow.processes import in_this_process
from stepscope.workflow.progress import Progress


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
    paths: list[str],
    *,
    whole_file: bool,
    since_ns: int | None = None,
    on_progress: Progress | None = None,
    map_files: FileMap = in_this_process,
) -> RankViews:
    """The per-rank half over all files.

    Files that do not tell their rank come last and get the lowest free ranks, in order.

    Args:
        paths: traces of one job.
        whole_file: as in view_rank.
        since_ns: start of the job's last attempt; traces from before belong to an earlier one.
        on_progress: told before each file.
        map_files: how the files are gone through.

    Raises:
        DataError: no file can be used, or the files cannot be of one job.
        UnreachableError: a URL's store does not answer.
    """
    found = RankViews()
    errors: list[DataError] = []
    tasks = [FileTask(path, 0 if len(paths) == 1 else None, whole_file, since_ns) for path in paths]
    waiting: list[FileTask] = []
    for result in _results(map_files, tasks, on_progress, len(paths)):
        if result.tells_rank or result.task.rank is not None:
            _take(found, result, errors)
        else:
            waiting.append(result.task)
    waiting = [
        replace(task, rank=rank) for task, rank in zip(waiting, _free_ranks(found.views, len(waiting)), strict=True)
    ]
    for result in _results(map_files, waiting, on_progress, len(paths)):
        if result.views and (found.views or result.task.rank):
            assumed = f"{result.task.path}: does not tell its rank; taken as rank {result.task.rank} by order"
            found.notices.append(Notice("rank_assumed", assumed))
        _take(found, result, errors)
    if not found.views:
        raise none_usable(errors, "files", what_next="give the traces of torch.profiler")
    _leave_out_hosts_only(found)
    _leave_out_other_times(found, [task.path for task in waiting])
    return found


def _results(
    map_files: FileMap, tasks: Sequence[FileTask], on_progress: Progress | None, num_files: int
) -> Iterator[FileViews]:
    """The tasks' results, in the tasks' order. The last tasks are the last of all files.

    Before each result, in the order in which they come, the progress is told with the first file still read.
    """
    results = iter(map_files(view_file, tasks)) if tasks else iter(())
    arrived: dict[FileTask, FileViews] = {}
    num_given = num_waiting = 0
    for num_arrived in range(len(tasks)):
        if on_progress is not None:
            on_progress(num_files - len(tasks) + num_arrived - num_waiting, num_files, tasks[num_given].path)
        result = next(results)
        num_waiting += not result.tells_rank and result.task.rank is None
        arrived[result.task] = result
        while num_given < len(tasks) and tasks[num_given] in arrived:
            yield arrived.pop(tasks[num_given])
            num_given += 1


def _free_ranks(taken: Collection[int], count: int) -> list[int]:
    return [rank for rank in range(len(taken) + count) if rank not in taken][:count]


class _MixedJobsError(DataError):
    """The files are not of one job."""


def _take(found: RankViews, result: FileViews, errors: list[DataError]) -> None:
    """Keep a file's views, or say why they are of no use.

    Raises:
        DataError: another file says that it is of the same rank.
        UnreachableError: its store did not answer.
    """
    found.notices += result.notices
    try:
        for view in result.views:
            _keep(found, view)
        if result.error is not None:
            raise result.error
    except _MixedJobsError:
        raise
    except DataError as error:
        errors.append(error)
        found.num_truncated += isinstance(error, TruncatedTraceError)
        found.notices.append(Notice("unusable_file", str(error)))


def _keep(found: RankViews, view: RankView) -> None:
    """Book the view under its rank.

    Raises:
        DataError: it is a copy of one that is there.
    """
    known = found.views.setdefault(view.rank, view)
    if known is view:
        return
    if (known.window.start_ns, known.window.end_ns) == (view.window.start_ns, view.window.end_ns):
        raise DataError(f"is a copy of {known.header.path}", where=view.header.path)
    raise _MixedJobsError(
        f"says it is rank {view.rank}, and so does {known.header.path}",
        where=view.header.path,
        what_next="give the files of one job, one a rank",
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
