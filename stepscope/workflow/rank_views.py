"""Views of a job's ranks: which file is which rank, and which files are left out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from stepscope.analyzer.rank_view import RankView
from stepscope.core.errors import DataError, TruncatedTraceError, none_usable
from stepscope.core.vocabulary import Notice
from stepscope.trace.columns import RankSource
from stepscope.trace.file_names import natural_order, ranks_by_name, read_file_name
from stepscope.workflow.fan_out.engine import Progress, in_this_process
from stepscope.workflow.fan_out.tasks import FileMap, FileTask, FileViews, view_file


@dataclass(slots=True)
class RankViews:
    """Views by rank, notices of what was left out or assumed, and the number of truncated files."""

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
    """Read the files of one job and make the views of their ranks.

    Files whose rank neither their trace nor their name gives come last and get the lowest free ranks, in order.
    Traces from before `since_ns`, the start of the job's last attempt, belong to an earlier attempt.

    Raises:
        DataError: no file can be used, or the files are of several jobs.
        UnreachableError: a URL's store does not answer.
    """
    found = RankViews()
    errors: list[DataError] = []
    tasks = [FileTask(path, rank, whole_file, since_ns, source) for path, (rank, source) in _named_ranks(paths)]
    waiting: list[FileTask] = []
    for result in _results(map_files, tasks, on_progress, len(paths)):
        if result.tells_rank or result.task.rank is not None:
            _add_result(found, result, errors)
        else:
            waiting.append(result.task)
    waiting.sort(key=lambda task: _place_order(task.path))
    free = _free_ranks(found.views, len(waiting))
    waiting = [replace(task, rank=rank, rank_source=RankSource.ORDER) for task, rank in zip(waiting, free, strict=True)]
    for result in _results(map_files, waiting, on_progress, len(paths)):
        if result.views and (found.views or result.task.rank):
            assumed = f"{result.task.path}: gives no rank; shown as rank {result.task.rank} by order"
            found.notices.append(Notice("rank_assumed", assumed))
        _add_result(found, result, errors)
    if not found.views:
        raise none_usable(errors, "files", what_next="give the traces of torch.profiler")
    _drop_ranks_without_device(found)
    _drop_other_times(found, [task.path for task in waiting])
    return found


def _results(
    map_files: FileMap, tasks: Sequence[FileTask], on_progress: Progress | None, num_files: int
) -> Iterator[FileViews]:
    """Results of the tasks, in their order. The last tasks are the last of all files.

    Before each result, in the order of arrival, the progress is called with the first file that is still being read.
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


def _named_ranks(paths: Sequence[str]) -> list[tuple[str, tuple[int | None, RankSource]]]:
    """Each path with its rank by the names of all, and where that comes from."""
    ranks = ranks_by_name(list(map(read_file_name, paths)))
    if ranks == [None]:
        return [(paths[0], (0, RankSource.ONLY_FILE))]
    return [(path, (rank, RankSource.FILE_NAME)) for path, rank in zip(paths, ranks, strict=True)]


_OUTERMOST_FIRST = ("pp", "dp", "cp", "ep", "tp")
"""Usual order of the parallel dimensions in the numbering of ranks."""


def _place_order(path: str) -> tuple[list[int], object]:
    """Sort key: places in the parallel dimensions as ranks are usually numbered, then names in natural order."""
    place = read_file_name(path).place
    return [place.get(dimension, 0) for dimension in _OUTERMOST_FIRST], natural_order(path)


def _free_ranks(taken: Collection[int], count: int) -> list[int]:
    return [rank for rank in range(len(taken) + count) if rank not in taken][:count]


class _MixedJobsError(DataError):
    """The files are of several jobs."""


def _add_result(found: RankViews, result: FileViews, errors: list[DataError]) -> None:
    """Add the views of a file, or a notice why it cannot be used.

    Raises:
        DataError: another file is of the same rank.
        UnreachableError: its store did not answer.
    """
    found.notices += result.notices
    try:
        for view in result.views:
            _add_view(found, view)
        if result.error is not None:
            raise result.error
    except _MixedJobsError:
        raise
    except DataError as error:
        errors.append(error)
        found.num_truncated += isinstance(error, TruncatedTraceError)
        found.notices.append(Notice("unusable_file", str(error)))


def _add_view(found: RankViews, view: RankView) -> None:
    """Add a view.

    Raises:
        DataError: it is a copy of another view, or another file is of the same rank.
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


def _drop_ranks_without_device(found: RankViews) -> None:
    """Drop ranks recorded without CUDA beside ranks with device activities; their time breakdown is of another kind."""
    if len({view.on_device for view in found.views.values()}) == 1:
        return
    for rank, view in list(found.views.items()):
        if not view.on_device:
            del found.views[rank]
            lacks = f"{view.header.path}: holds no device activities, the other ranks do; left out"
            found.notices.append(Notice("unusable_file", lacks))


def _drop_other_times(found: RankViews, nameless: list[str]) -> None:
    """Drop ranks that were not recorded at the same time; not judged across hosts, whose clocks may differ.

    Raises:
        DataError: files without a rank do not overlap in time.
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
