"""Reduction of a capture to views: each trace's view is made and read back, then traces that need not stay are removed.

Each rank's side process makes the view of its own trace. That of the lowest rank in the run directory then chooses
which traces stay, by the views' headers, writes the record (`removed_traces`) and removes the others. Where nodes share
no disk each chooses among its own ranks. A trace whose view is not whole, fresh and readable stays, whatever was asked
for.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import stepscope
from stepscope.analyzer.collectives.openings import common_beginning
from stepscope.analyzer.rank_view import RankView
from stepscope.core.documents.run_directory import KeepTraces, trace_path, view_path
from stepscope.core.errors import DataError, StepscopeError
from stepscope.core.vocabulary import TimeCategory
from stepscope.trace.columns import RankSource
from stepscope.workflow.fan_out.tasks import FileTask, view_file
from stepscope.workflow.inputs.trace_stamps import TraceStamp
from stepscope.workflow.views.kept_views import encoded_views, find_views, own_ms
from stepscope.workflow.views.removed_traces import RemovedTrace, RemovedTraces, name_of, read_records, write_record
from stepscope.workflow.views.view_files import write_file

_log = logging.getLogger(__name__)

OUTLIERS_AT_MOST = 8
"""Traces that stay as outliers: as many as one looks at; a stage or node that differs is shown by some of its ranks."""
_LEAST_RATIO = 0.05
"""Of a step, by which a category must differ: as `compare` takes for noise between ranks of one job."""
_LEAST_SIGMAS = 5.0
_MAD_TO_SIGMA = 1.4826


def make_view(trace: Path) -> None:
    """Make the view of a rank's trace in its run directory, and read it back.

    Raises:
        StepscopeError: the trace cannot be used, or its view not be written or read.
    """
    task = _task(trace)
    with suppress(DataError):
        if find_views(task) is not None:
            return
    result = view_file(task)
    if result.error is not None:
        raise result.error
    content = encoded_views(result)
    if content is None:
        raise DataError("has changed while it was read", where=str(trace))
    if write_file([_run_of(trace) / view_path(trace)], content) is None:
        raise DataError("has no view, as views/ of the run cannot be written", where=str(trace))
    if find_views(task) is None:
        raise DataError("has no view that is one of it", where=str(trace))


def reduce_capture(trace: Path, rank: int, ranks: Sequence[int], keep: KeepTraces) -> RemovedTraces:
    """Remove the traces of a capture that need not stay; returns the record of it.

    Args:
        trace: of the rank that chooses.
        ranks: those to choose among.

    Raises:
        StepscopeError: the record cannot be written; all traces stay.
    """
    run, capture = _run_of(trace), trace.parent.name
    found = [one for each in ranks if (one := _viewed(trace.with_name(trace_path(0, each).name), each)) is not None]
    if common_beginning({one.rank: one.view for one in found}) is not None if found else False:
        kept = {one.trace.name: "the ranks' profilers began seconds apart" for one in found}
    elif keep is KeepTraces.OUTLIERS:
        kept = traces_to_keep({one.trace.name: one.breakdown_ms for one in found})
    else:
        kept = {}
    removed = {one.trace.name: one for one in found if one.trace.name not in kept}
    known = {name: one for record in read_records(run, capture) for name, one in record.removed.items()}
    known |= {name: RemovedTrace(one.stamp.num_bytes, one.stamp.digest) for name, one in removed.items()}
    record = RemovedTraces(name_of(run) or run.name, capture, stepscope.__version__, known, kept)
    write_record(run, rank, record)
    for one in removed.values():
        with suppress(OSError):  # it stays, and counts
            one.trace.unlink()
    return record


def traces_to_keep(breakdowns_ms: Mapping[str, Mapping[str, float]], most: int = OUTLIERS_AT_MOST) -> dict[str, str]:
    """Which traces of a capture stay, and why: the slowest, those whose breakdown differs, and a median one.

    A breakdown differs where a category is apart from the median of all ranks by five sigma (by the median absolute
    deviation) and by 5% of a step. Ranks that wait for each other have equal steps: the slowest is the one that spends
    most time itself.

    Args:
        breakdowns_ms: time a step by category, by file name in the order of the ranks.
        most: that differ.
    """
    if not breakdowns_ms:
        return {}
    own = {name: own_ms(breakdown) for name, breakdown in breakdowns_ms.items()}
    step_ms = median(sum(breakdown.values()) for breakdown in breakdowns_ms.values())
    middle = sorted(own.values())[(len(own) - 1) // 2]
    usual = min(own, key=lambda name: abs(own[name] - middle))
    kept = {max(own, key=own.__getitem__): "spends most time itself"}
    deviations: dict[str, tuple[float, str]] = {}
    for category in TimeCategory:
        values = {name: breakdown.get(category.value, 0.0) for name, breakdown in breakdowns_ms.items()}
        center = median(values.values())
        sigma = _MAD_TO_SIGMA * median(abs(value - center) for value in values.values())
        least = max(_LEAST_SIGMAS * sigma, _LEAST_RATIO * step_ms)
        for name, value in values.items():
            apart = abs(value - center)
            if apart > max(least, deviations.get(name, (0.0, ""))[0]):
                words = f"{category.value}: {value:,.1f} ms per step, the median rank has {center:,.1f}"
                deviations[name] = apart, words
    farthest = sorted(deviations, key=lambda name: -deviations[name][0])[:most]
    kept |= {name: deviations[name][1] for name in farthest if name not in kept}
    kept.setdefault(usual, "the median rank")
    return kept


@dataclass(frozen=True, slots=True)
class _Viewed:
    """A rank's trace and what choosing needs of its view."""

    rank: int
    trace: Path
    stamp: TraceStamp
    breakdown_ms: dict[str, float]
    view: RankView


def _viewed(trace: Path, rank: int) -> _Viewed | None:
    """A trace that is there and whose view stands for it; None for any other."""
    try:
        found = find_views(_task(trace)) if trace.exists() else None
    except StepscopeError as error:
        _log.debug("the trace of rank %d stays: %s", rank, error)
        return None
    if found is None:
        return None
    header, result = found
    _, stamp = header.traces[0]
    if result.error is not None or len(result.views) != 1 or result.views[0].rank != rank or not stamp.digest:
        return None
    (view,) = result.views
    light = replace(view, calls=[], graph=None, timeline=None, step_kernels=None)  # a job has many ranks
    return _Viewed(rank, trace, stamp, header.breakdown_ms, light)


def _task(trace: Path) -> FileTask:
    """As an analysis of the run asks for it."""
    rank = int(trace.name.removeprefix("rank").partition(".")[0])
    return FileTask(str(trace), rank, rank_source=RankSource.FILE_NAME)


def _run_of(trace: Path) -> Path:
    return trace.parent.parent.parent
