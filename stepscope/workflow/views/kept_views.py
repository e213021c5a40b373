"""Views of trace files from the last analysis, used again while the traces are unchanged.

`reusing_views` puts itself before a fan-out's map: tasks whose view is kept cost no fan-out, the others are read, and
their views kept.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from stepscope.analyzer.collectives.openings import Beginning
from stepscope.analyzer.rank_view import RankView
from stepscope.core.errors import StepscopeError
from stepscope.core.vocabulary import CATEGORY_CODE, CATEGORY_ORDER, EXPOSED_COMMUNICATION_CATEGORIES, Notice
from stepscope.trace.columns import RankSource
from stepscope.workflow.fan_out.tasks import FileMap, FileTask, FileViews, check_attempt, merged_ranks
from stepscope.workflow.inputs.archives import split_address
from stepscope.workflow.inputs.trace_stamps import digest_of, stamp_of
from stepscope.workflow.views.view_checks import check_view
from stepscope.workflow.views.view_files import is_on, read_file, view_places, write_file
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
        if not is_on():
            yield from map_files(work, tasks)
            return
        waiting: list[FileTask] = []
        refused: dict[FileTask, Notice] = {}
        for task in tasks:
            try:
                result = load_views(task)
            except UnusableViewError as error:
                refused[task] = Notice("view_not_used", f"{error}; the trace is read again")
                result = None
            if result is None:
                waiting.append(task)
            else:
                yield result
        for result in _map_all(map_files, work, waiting):
            keep_views(result)
            if result.task in refused:
                result.notices.append(refused[result.task])
            yield result

    return mapped


def _map_all(
    map_files: FileMap, work: Callable[[FileTask], FileViews], tasks: Sequence[FileTask]
) -> Iterable[FileViews]:
    return map_files(work, tasks) if tasks else ()


def keep_views(result: FileViews) -> Path | None:
    """Keep the views of a trace file that could be used; the path of their file, None where they are not kept."""
    if result.stamp is None or result.error is not None or not result.views:
        return None
    body = KeptViews(result.views, result.tells_rank, result.process, result.span_ns)
    times = [_times_ms(view) for view in result.views]
    try:
        content = VIEWS.encode(
            body,
            [(_name(result.task.path), result.stamp)],
            _options(result.task, tells_rank=result.tells_rank),
            made_ns=time.time_ns(),
            own_ms=max(own for own, _ in times),
            communication_ms=max(communication for _, communication in times),
        )
    except UnusableViewError as error:
        _log.debug("no view of %s is kept: %s", result.task.path, error)
        return None
    return write_file(view_places(result.task.path, _variant(result.task)), content)


def load_views(task: FileTask) -> FileViews | None:
    """The kept views of a trace file as reading it again would make them; None where there are none of this trace.

    Raises:
        UnusableViewError: a file of views is damaged or foreign.
    """
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


def _load(task: FileTask, path: Path) -> FileViews | None:
    content = read_file(path, _owners(task.path))
    if content is None:
        return None
    header, packed = split(content, where=str(path))
    if header.maker != maker() or not _are_options(header, task) or not _is_fresh(header, task.path, path, content):
        return None
    kept = VIEWS.decode(header, packed, where=str(path))
    for view in kept.views:
        check_view(view, where=str(path))
    return _as_read(kept, task)


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


def _owners(address: str) -> frozenset[int]:
    source, _ = split_address(address)
    if "://" not in source:
        with suppress(OSError):
            return frozenset({os.stat(source).st_uid})
    return frozenset()


_OF_OTHERS = np.isin(np.arange(len(CATEGORY_ORDER)), [CATEGORY_CODE[one] for one in EXPOSED_COMMUNICATION_CATEGORIES])


def _times_ms(view: RankView) -> tuple[float, float]:
    """Time a step that a rank spent itself, and in communication and waits."""
    spent = view.segments.duration_ns[_OF_OTHERS[view.segments.category]].sum()
    num_steps = max(len(view.window.boundary_ns), 1)
    communication = float(spent) / num_steps / 1e6
    return view.window_ns / num_steps / 1e6 - communication, communication
