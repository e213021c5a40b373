"""Views of a job's ranks: which file is which rank and which capture, and which files are left out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from stepscope.analyzer.collectives.openings import common_beginning
from stepscope.analyzer.rank_view import RankView
from stepscope.core.errors import DataError, TruncatedTraceError, none_usable
from stepscope.core.vocabulary import Notice
from stepscope.trace.columns import RankSource
from stepscope.trace.file_names import natural_order, ranks_by_name, read_file_name, without_numbers
from stepscope.workflow.fan_out.engine import Progress, in_this_process
from stepscope.workflow.fan_out.tasks import FileMap, FileTask, FileViews, view_file
from stepscope.workflow.inputs.captures import check_number, choice_words
from stepscope.workflow.views.view_format import UnusableViewError


@dataclass(slots=True)
class RankViews:
    """Views of a job's ranks.

    Attributes:
        views: by rank, of the chosen capture.
        notices: on what was left out or assumed.
        num_truncated: files that end too early.
        num_captures: captures of the same processes, by their process ids and times.
        unrecorded: views of ranks that used a GPU, whose device activities are missing though others' are there.
    """

    views: dict[int, RankView] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)
    num_truncated: int = 0
    num_captures: int = 1
    unrecorded: list[RankView] = field(default_factory=list)


def view_files(
    paths: list[str],
    *,
    whole_file: bool,
    since_ns: int | None = None,
    capture: int | None = None,
    on_progress: Progress | None = None,
    map_files: FileMap = in_this_process,
) -> RankViews:
    """Workflow: read the trace files of one job and have the analyzer make the views of their ranks.

    Files whose rank neither their trace nor their name gives come last and get the lowest free ranks, in order.
    Traces from before `since_ns`, the start of the job's last attempt, belong to an earlier attempt. Of several
    captures of a process `capture` is viewed, counted from 1; None stands for the latest.

    Raises:
        DataError: no file can be used, or the files are of several jobs.
        UsageError: there is no such capture.
        UnreachableError: a URL's store does not answer.
    """
    found = _Found()
    tasks = [FileTask(path, rank, whole_file, since_ns, source) for path, (rank, source) in _named_ranks(paths)]
    nameless: list[FileViews] = []
    for result in _results(map_files, tasks, on_progress, len(paths)):
        if result.tells_rank or result.task.rank is not None:
            found.add(result)
        else:
            nameless.append(result)
    processes = _captures_by_process(nameless)
    numbers = _free_ranks(found.views, len(processes))
    is_alone = len(processes) + len(found.views) == 1
    source = RankSource.ONLY_FILE if is_alone else RankSource.ORDER
    waiting = [
        replace(result.task, rank=rank, rank_source=source)
        for rank, captures in zip(numbers, processes, strict=True)
        for result in captures
    ]
    for result in _results(map_files, waiting, on_progress, len(paths)):
        if result.views and not is_alone and result.task.rank not in found.views:
            assumed = f"{result.task.path}: gives no global rank; shown as rank {result.task.rank} by order"
            found.notices.append(Notice("rank_assumed", assumed))
        found.add(result)
    if not found.views:
        raise none_usable(found.errors, "files", what_next="give the traces of torch.profiler")
    job = found.choose(capture)
    _drop_ranks_without_device(job)
    _drop_other_times(job, [task.path for task in waiting])
    if not whole_file:
        _leave_out_lead_in(job, found, map_files)
    return job


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


def _captures_by_process(results: Sequence[FileViews]) -> list[list[FileViews]]:
    """The files without a rank, those that are captures of one process together."""
    processes: list[list[FileViews]] = []
    for result in sorted(results, key=lambda result: _place_order(result.task.path)):
        known = next((files for files in processes if all(_is_other_capture(result, file) for file in files)), None)
        if known is None:
            processes.append([result])
        else:
            known.append(result)
    return processes


def _is_other_capture(a: FileViews, b: FileViews) -> bool:
    """Whether two files are captures of one process: of the same id, at other times, with names that number them."""
    overlap = a.span_ns[0] < b.span_ns[1] and b.span_ns[0] < a.span_ns[1]
    is_numbered = without_numbers(a.task.path) == without_numbers(b.task.path)
    return a.process is not None and a.process == b.process and is_numbered and not overlap


class _MixedJobsError(DataError):
    """The files are of several jobs."""


@dataclass(slots=True)
class _Found:
    """Views by rank, one a capture, as they come."""

    views: dict[int, list[tuple[FileViews, RankView]]] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)
    errors: list[DataError] = field(default_factory=list)
    num_truncated: int = 0

    def add(self, result: FileViews) -> None:
        """Add the views of a file, or a notice why it cannot be used.

        Raises:
            DataError: another file is of the same rank.
            UnreachableError: its store did not answer.
        """
        self.notices += result.notices
        try:
            for view in result.views:
                self._add_view(result, view)
            if result.error is not None:
                raise result.error
        except _MixedJobsError:
            raise
        except DataError as error:
            self.errors.append(error)
            self.num_truncated += isinstance(error, TruncatedTraceError)
            self.notices.append(Notice("unusable_file", str(error)))

    def _add_view(self, result: FileViews, view: RankView) -> None:
        """Add a view.

        Raises:
            DataError: it is a copy of another view, or a file of another process is of the same rank.
        """
        of_rank = self.views.setdefault(view.rank, [])
        for other, known in of_rank:
            same_window = (known.window.start_ns, known.window.end_ns) == (view.window.start_ns, view.window.end_ns)
            if same_window and other.process == result.process:
                raise DataError(f"is a copy of {known.header.path}", where=view.header.path)
            if not _is_other_capture(other, result):
                raise _MixedJobsError(
                    f"says it is rank {view.rank}, and so does {known.header.path}",
                    where=view.header.path,
                    what_next="give the files of one job, one a rank",
                )
        of_rank.append((result, view))

    def choose(self, capture: int | None) -> RankViews:
        """The views of one capture, the latest for None; each rank's captures are counted from its last one back.

        Raises:
            UsageError: there is no such capture.
        """
        ranks = {
            rank: [view for _, view in sorted(views, key=lambda one: one[1].window.start_ns)]
            for rank, views in sorted(self.views.items())
            if views
        }
        count = max(map(len, ranks.values()))
        number = count if capture is None else capture
        check_number(number, count)
        if count > 1:
            longest = max(ranks.values(), key=len)
            words = choice_words(number, [view.header.file for view in longest])
            self.notices.append(Notice("older_captures", words))
        chosen = {rank: views[number - count - 1] for rank, views in ranks.items() if len(views) > count - number}
        return RankViews(chosen, self.notices, self.num_truncated, count)


def _leave_out_lead_in(job: RankViews, found: _Found, map_files: FileMap) -> None:
    """View the files again from where on all ranks are recorded, if their profilers began seconds apart."""
    beginning = common_beginning(job.views)
    if beginning is None:
        return
    files = (file for captures in found.views.values() for file, view in captures if job.views.get(view.rank) is view)
    tasks = dict.fromkeys(replace(file.task, begins=beginning) for file in files)
    results = list(map_files(view_file, list(tasks)))
    if any(isinstance(result.error, UnusableViewError) for result in results):  # of traces that were removed
        apart = f"the ranks' profilers began {beginning.apart_ns / 1e6:,.1f} ms apart; the time before all recorded is"
        job.notices.append(Notice("profilers_apart", f"{apart} left in, as traces were reduced to their views"))
        return
    views = [view for result in results for view in result.views]
    job.views |= {view.rank: view for view in views if view.rank in job.views}
    job.notices.append(beginning.notice)


def _drop_ranks_without_device(found: RankViews) -> None:
    """Drop ranks recorded without CUDA beside ranks with device activities; their time breakdown is of another kind."""
    recorded = {rank for rank, view in found.views.items() if view.has_device_activities}
    if not recorded:
        return
    for rank, view in list(found.views.items()):
        if rank not in recorded:
            del found.views[rank]
            if view.on_device:
                found.unrecorded.append(view)
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
