"""Views of trace files from the last analysis, used again while the traces are unchanged.

`reusing_views` puts itself before a fan-out's map: tasks whose view is kept cost no fan-out, the others are read, and
their views kept.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import stepscope
from stepscope.analyzer.collectives.openings import Beginning
from stepscope.analyzer.rank_view import RankView
from stepscope.core.errors import StepscopeError
from stepscope.core.vocabulary import CATEGORY_ORDER, EXPOSED_COMMUNICATION_CATEGORIES, Notice
from stepscope.trace.columns import RankSource
from stepscope.workflow.fan_out.tasks import FileMap, FileTask, FileViews, check_attempt, merged_ranks
from stepscope.workflow.inputs.trace_stamps import digest_of, stamp_of
from stepscope.workflow.views.removed_traces import RemovedLookup, RemovedTrace
from stepscope.workflow.views.view_checks import check_view
from stepscope.workflow.views.view_files import is_on, owners_of, read_file, view_places, write_file
from stepscope.workflow.views.view_format import (
    UnusableViewError,
    ViewFormat,
    ViewHeader,
    ViewOptions,
    maker,
    split,
    with_header,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeptViews:
    """Views of the ranks in one trace file, as kept; the other fields as in FileViews."""

    views: list[RankView]
    tells_rank: bool
    process: tuple[str | None, int] | None
    span_ns: tuple[int, int]


VIEWS = ViewFormat(KeptViews)


def reusing_views(map_files: FileMap) -> FileMap:
    """The same map of a fan-out, but for files whose views are kept; the views of the others are kept."""

    def mapped(work: Callable[[FileTask], FileViews], tasks: Sequence[FileTask]) -> Iterator[FileViews]:
        waiting: list[FileTask] = []
        refused: dict[FileTask, Notice] = {}
        removed = RemovedLookup()
        for task in tasks:
            result = None
            try:
                result = _standing_for_trace(task, removed) or (load_views(task) if is_on() else None)
            except UnusableViewError as error:
                refused[task] = Notice("view_not_used", f"{error}; the trace is read again")
            if result is None:
                waiting.append(task)
            else:
                yield result
        for result in _map_all(map_files, work, waiting):
            if result.error is not None and (meanwhile := _standing_for_trace(result.task, RemovedLookup())):
                yield meanwhile
                continue
            if is_on():
                keep_views(result)
            if result.task in refused:
                result.notices.append(refused[result.task])
            yield result

    return mapped


def _standing_for_trace(task: FileTask, removed: RemovedLookup) -> FileViews | None:
    """The views of a trace that was removed, or why they cannot be used; None where it was not."""
    try:
        trace = removed.find(task.path)
        return None if trace is None else load_removed_views(task, trace)
    except UnusableViewError as error:
        return FileViews(task, error=error)


def _map_all(
    map_files: FileMap, work: Callable[[FileTask], FileViews], tasks: Sequence[FileTask]
) -> Iterable[FileViews]:
    return map_files(work, tasks) if tasks else ()


def keep_views(result: FileViews) -> Path | None:
    """Keep the views of a trace file that could be used; the path of their file, None where they are not kept."""
    try:
        content = encoded_views(result)
    except UnusableViewError as error:
        _log.debug("no view of %s is kept: %s", result.task.path, error)
        return None
    return None if content is None else write_file(view_places(result.task.path, _variant(result.task)), content)


def encoded_views(result: FileViews) -> bytes | None:
    """Content of the file of a trace's views; None of a trace that could not be used, or changed meanwhile.

    Raises:
        UnusableViewError: they cannot be kept.
    """
    if result.stamp is None or result.error is not None or not result.views:
        return None
    breakdown_ms = max(map(_breakdown_ms, result.views), key=own_ms)
    return VIEWS.encode(
        KeptViews(result.views, result.tells_rank, result.process, result.span_ns),
        [(_name(result.task.path), result.stamp)],
        _options(result.task, tells_rank=result.tells_rank),
        made_ns=time.time_ns(),
        own_ms=own_ms(breakdown_ms),
        breakdown_ms=breakdown_ms,
    )


def load_views(task: FileTask) -> FileViews | None:
    """The kept views of a trace file as reading it again would make them; None where there are none of this trace.

    Raises:
        UnusableViewError: a file of views is damaged or foreign.
    """
    found = find_views(task)
    return None if found is None else found[1]


def find_views(task: FileTask) -> tuple[ViewHeader, FileViews] | None:
    """`load_views`, and the header of their file."""
    refused: UnusableViewError | None = None
    for path in view_places(task.path, _variant(task)):
        try:
            result = _load(task, path)
        except UnusableViewError as error:
            refused = refused or error
            continue
        if result is not None:
            return result
    if refused is not None:
        raise refused
    return None


def load_removed_views(task: FileTask, removed: RemovedTrace) -> FileViews:
    """The kept views of a trace that was removed.

    Raises:
        UnusableViewError: there are none of that trace and this version.
    """
    refused: UnusableViewError | None = None
    for path in view_places(task.path, _variant(task)):
        try:
            content = read_file(path, owners_of(task.path))
            if content is not None:
                return _as_read(_of_removed(content, task, removed, where=str(path)), task)
        except UnusableViewError as error:
            refused = refused or error
    if refused is not None:
        again = "the trace was removed: copy views/ of the run again"
        raise UnusableViewError(refused.what, where=refused.where, what_next=refused.what_next or again) from refused
    what, next_step = "its trace was reduced to a view, which is missing", "copy views/ of the run as well"
    if _variant(task):
        what = "its trace was reduced to its view, of the profiled steps from the first one on alone"
        next_step = "leave --window file out" if task.whole_file else ""
    raise UnusableViewError(what, where=task.path, what_next=next_step)


def _of_removed(content: bytes, task: FileTask, removed: RemovedTrace, *, where: str) -> KeptViews:
    header, packed = split(content, where=where)
    (name, stamp), *others = header.traces
    if others or (name, stamp.num_bytes, stamp.digest) != (_name(task.path), removed.bytes, removed.digest):
        raise UnusableViewError("is not the view of the trace that was removed", where=where)
    if header.maker != maker():
        same = header.version == stepscope.__version__
        made_by = f"{'another build of ' if same else ''}stepscope {header.version}"
        install = "the one that trained" if same else f'pip install "stepscope[analyze]=={header.version}"'
        raise UnusableViewError(
            f"was made by {made_by}, this is {stepscope.__version__}, and its trace was removed",
            where=where,
            what_next=f"analyze the run with that installation: {install}",
        )
    if not _are_options(header, task):
        raise UnusableViewError("was made with other options", where=where, what_next="its trace was removed")
    return _checked(header, packed, where)


def _load(task: FileTask, path: Path) -> tuple[ViewHeader, FileViews] | None:
    content = read_file(path, owners_of(task.path))
    if content is None:
        return None
    header, packed = split(content, where=str(path))
    if header.maker != maker() or not _are_options(header, task) or not _is_fresh(header, task.path, path, content):
        return None
    return header, _as_read(_checked(header, packed, str(path)), task)


def _checked(header: ViewHeader, packed: bytes, where: str) -> KeptViews:
    kept = VIEWS.decode(header, packed, where=where)
    for view in kept.views:
        check_view(view, where=where)
    return kept


def is_same(header: ViewHeader, addresses: Sequence[str]) -> bool | None:
    """Whether the traces of these addresses are those that a view was made from; None: by their content alone."""
    names = [name for name, _ in header.traces]
    if names != [_name(address) for address in addresses]:
        return False
    is_by_state = True
    for address, (_, then) in zip(addresses, header.traces, strict=True):
        now = stamp_of(address)
        if now is None or now.num_bytes != then.num_bytes:
            return False
        if then.is_of_state(now) and then.is_settled(header.made_ns):
            continue
        is_by_state = False
        if not then.digest or digest_of(address) != then.digest:
            return False
    return True if is_by_state else None


def _is_fresh(header: ViewHeader, address: str, path: Path, content: bytes) -> bool:
    """Whether a trace is unchanged; where its content had to be read for that, the view gets its present stamp."""
    looked_ns = time.time_ns()
    same = is_same(header, [address])
    if same is None:
        now = stamp_of(address)
        (name, then) = header.traces[0]
        if now is not None:
            renewed = with_header(content, traces=[(name, now.with_digest(then.digest))], made_ns=looked_ns)
            write_file([path], renewed)
    return same is not False


def _as_read(kept: KeptViews, task: FileTask) -> FileViews:
    """The result of reading the file, under its present path."""
    result = FileViews(task, tells_rank=kept.tells_rank, process=kept.process, span_ns=kept.span_ns)
    if not kept.tells_rank and task.rank is None:
        return result
    try:
        check_attempt(task, kept.span_ns)
        views = [replace(view, header=replace(view.header, path=task.path)) for view in kept.views]
        result.notices += merged_ranks([view.header for view in views])
        result.views += views
    except StepscopeError as error:
        result.error = error
    return result


def _are_options(header: ViewHeader, task: FileTask) -> bool:
    """Whether a view was made as the task asks; of a trace that tells its rank the task's is of no account."""
    own = _options(task, tells_rank=header.options.rank is None)
    is_nameless = header.options.rank is not None and task.rank is None
    if is_nameless:
        own = replace(own, rank=header.options.rank, rank_source=header.options.rank_source)
    return own == header.options


def _options(task: FileTask, *, tells_rank: bool) -> ViewOptions:
    given: tuple[int | None, RankSource | None] = (None, None) if tells_rank else (task.rank, task.rank_source)
    one = task.begins
    begins = None if one is None else (one.apart_ns, one.step, one.time_ns)
    return ViewOptions(whole_file=task.whole_file, begins=begins, rank=given[0], rank_source=given[1])


def _variant(task: FileTask) -> str:
    parts = ["whole"] if task.whole_file else []
    return "-".join([*parts, *([] if task.begins is None else [f"from-{_begin_text(task.begins)}"])])


def _begin_text(begins: Beginning) -> str:
    return hashlib.sha256(repr(tuple(begins)).encode()).hexdigest()[:12]


def _name(address: str) -> str:
    """What stays of an address when its run directory is moved or copied."""
    return address.replace("\\", "/").rpartition("/")[2]


_OF_OTHERS = frozenset(category.value for category in EXPOSED_COMMUNICATION_CATEGORIES)


def _breakdown_ms(view: RankView) -> dict[str, float]:
    """Time a step by category; categories without time are left out."""
    segments, num_steps = view.segments, max(len(view.window.boundary_ns), 1)
    spent = np.bincount(segments.category, weights=segments.duration_ns, minlength=len(CATEGORY_ORDER))
    return {
        category.value: float(time_ns) / num_steps / 1e6
        for category, time_ns in zip(CATEGORY_ORDER, spent, strict=True)
        if time_ns
    }


def own_ms(breakdown_ms: Mapping[str, float]) -> float:
    """Time a step that a rank spent itself, by its breakdown: all but exposed communication and waits for others."""
    return sum(milliseconds for category, milliseconds in breakdown_ms.items() if category not in _OF_OTHERS)
