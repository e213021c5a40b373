"""How is an analysis handed to somebody who has nothing installed? As one HTML file, whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stepscope import __version__
from stepscope.core.analysis import Analysis
from stepscope.core.run_layout import ANALYSIS_FILE
from stepscope.core.timeline import RankTimeline
from stepscope.store.documents import decode_analysis
from stepscope.store.files import check_writable, read_whole, write_whole
from stepscope.store.runs import load_analysis, load_timeline
from stepscope.workflow.analyze import analyze
from stepscope.workflow.fan_out import HERE, FanOut
from stepscope.workflow.given_paths import check_readable
from stepscope.workflow.kept_analysis import is_outdated, is_saved_analysis
from stepscope.workflow.progress import Progress
from stepscope.workflow.report_html.page import render


def report(
    paths: Sequence[str], destination: Path, *, fan_out: FanOut = HERE, on_progress: Progress | None = None
) -> Path:
    """Write the report of a run; the path of the file.

    Args:
        paths: as for `analyze`, or one saved analysis (without time lines, then). A run that is analysed already is not
            analysed again.
        destination: the file to write.
        fan_out: where traces are read.
        on_progress: told before each file.

    Raises:
        DataError: nothing can be used, or the file cannot be written.
        UnreachableError: a URL's store does not answer.
    """
    check_writable(destination)
    if len(paths) == 1 and "://" not in paths[0]:
        check_readable(paths[0])
        place = Path(paths[0])
        if place.is_file() and is_saved_analysis(place):
            return write_report(decode_analysis(read_whole(place), where=paths[0]), [], destination, title=place.stem)
        if (place / ANALYSIS_FILE).is_file() and not is_outdated(place):
            return write_report(load_analysis(place), load_timeline(place), destination, title=title_of(paths))
    result = analyze(paths, keep=False, with_timelines=True, fan_out=fan_out, on_progress=on_progress)
    return write_report(result.analysis, result.timelines, destination, title=title_of(paths))


def write_report(analysis: Analysis, timelines: Sequence[RankTimeline], destination: Path, *, title: str) -> Path:
    """Write the report of an analysis; the path of the file.

    Raises:
        DataError: the file cannot be written.
    """
    write_whole(destination, render(analysis, timelines, title=title, version=__version__).encode())
    return destination


def title_of(paths: Sequence[str]) -> str:
    """What to call the run: its folder."""
    return paths[0].rstrip("/").rsplit("/", 1)[-1] if "://" in paths[0] else Path(paths[0]).resolve().name or paths[0]
