"""All panels of an analysis in their order, and the report: one HTML file of these without scripts and network."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from stepscope import __version__
from stepscope.core.documents.analysis import AnalysedJob, Analysis
from stepscope.core.documents.run_directory import RankTimeline
from stepscope.core.text.job_time import of_training_time
from stepscope.core.text.numbers import counted, milliseconds, moment, percent
from stepscope.core.text.wording import device_words, mesh_words
from stepscope.store.documents import decode_analysis
from stepscope.store.files import check_writable, read_whole, write_whole
from stepscope.store.runs import has_current_analysis, is_saved_analysis, load_analysis, load_timeline
from stepscope.workflow.analyze import analyze
from stepscope.workflow.fan_out.engine import HERE, FanOut, Progress
from stepscope.workflow.inputs.paths import check_readable
from stepscope.workflow.panels import verdict
from stepscope.workflow.panels.communication import communication_panel, pipeline_panel
from stepscope.workflow.panels.elements import Child, Element, name, tag, to_html
from stepscope.workflow.panels.kernels import kernels_panel
from stepscope.workflow.panels.ledger import ledger_panel
from stepscope.workflow.panels.palette import DARK, LIGHT, mark_rules, variables
from stepscope.workflow.panels.timeline import timeline_panel


def report_of_run(
    paths: Sequence[str], destination: Path, *, fan_out: FanOut = HERE, on_progress: Progress | None = None
) -> Path:
    """Panels: write the HTML report of a run from its panels; returns the path of the file.

    Args:
        paths: as for `analyze`, or one saved analysis (then without time lines). An up-to-date analysis that is kept in
            the run is used.

    Raises:
        DataError: no input can be used, or the file cannot be written.
        UnreachableError: a URL's store does not answer.
    """
    check_writable(destination)
    if len(paths) == 1 and "://" not in paths[0]:
        check_readable(paths[0])
        place = Path(paths[0])
        if place.is_file() and is_saved_analysis(place):
            return write_html_report(
                decode_analysis(read_whole(place), where=paths[0]), [], destination, title=place.stem
            )
        if has_current_analysis(place):
            return write_html_report(load_analysis(place), load_timeline(place), destination, title=report_title(paths))
    result = analyze(paths, keep=False, with_timelines=True, fan_out=fan_out, on_progress=on_progress)
    return write_html_report(result.analysis, result.timelines, destination, title=report_title(paths))


def write_html_report(analysis: Analysis, timelines: Sequence[RankTimeline], destination: Path, *, title: str) -> Path:
    """Write the HTML report of an analysis; returns the path of the file.

    Raises:
        DataError: the file cannot be written.
    """
    write_whole(destination, render_report(analysis, timelines, title=title, version=__version__).encode())
    return destination


def report_title(paths: Sequence[str]) -> str:
    """Title of a report: the name of the run's folder."""
    return paths[0].rstrip("/").rsplit("/", 1)[-1] if "://" in paths[0] else Path(paths[0]).resolve().name or paths[0]


POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""Even if an escape failed, a browser would run nothing and send no request."""


def render_report(analysis: Analysis, timelines: Sequence[RankTimeline], *, title: str, version: str) -> str:
    """Panels: render the HTML report of an analysis.

    Args:
        timelines: the ranks' time lines; empty leaves their panel out.
        version: of stepscope, for the last line.
    """
    made_by = f"Made by stepscope {version} from {analysis.schema}. Documentation of every number: How numbers are made"
    panels = all_panels(analysis, timeline_panel(analysis, timelines), with_steps=True)
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{name(title)} – stepscope"),
    ]
    main = tag("main", page_head(title, analysis.job), panels, tag("footer", made_by))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{to_html(head)}<style>{_style()}</style></head>'
        f"<body>{to_html(main)}</body></html>\n"
    )


def _style() -> str:
    dark = f"@media screen and (prefers-color-scheme: dark){{:root{{{variables(DARK)}}}}}"
    return f":root{{{variables(LIGHT)}}}{dark}{mark_rules()}\n{style_sheet('panels.css')}{style_sheet('report.css')}"


def page_head(title: str, job: AnalysedJob, *, started_ns: int | None = None) -> Element:
    """Head of a report or page of a run: its name, size, and when it began."""
    mesh = mesh_words(job.mesh)
    missing = "" if len(job.ranks) == job.world_size else f"{len(job.ranks)} of "
    facts = [
        device_words(job),
        f"{missing}{counted(job.world_size, 'rank')}",
        counted(job.num_steps, "profiled step") if job.num_steps else "no step profiled",
        "" if started_ns is None else moment(started_ns),
    ]
    line = [tag("h1", name(title)), tag("span", name(mesh), class_="ss-badge") if mesh else None]
    note = tag("div", " · ".join(name(fact) for fact in facts if fact), class_="ss-note")
    return tag("header", tag("div", tag("div", line, class_="ss-title-line"), note), class_="ss-page-head")


def all_panels(analysis: Analysis, timeline: Child, *, with_steps: bool = False) -> list[Child]:
    """All panels of an analysis: trace quality first, then the verdict, then its evidence; without a trace no others.

    Args:
        timeline: the panel of the time lines, which page and report draw differently.
        with_steps: also a bar per step, where the time lines have no table of steps.
    """
    if not analysis.ranks:
        return [verdict.verdict_card(analysis), verdict.breakdown_panel(analysis), verdict.warnings_panel(analysis)]
    return [
        verdict.quality_block(analysis),
        _figures(analysis),
        verdict.verdict_card(analysis),
        verdict.breakdown_panel(analysis),
        verdict.what_if_panel(analysis),
        ledger_panel(analysis, with_steps=with_steps),
        timeline,
        communication_panel(analysis),
        pipeline_panel(analysis),
        kernels_panel(analysis),
        verdict.warnings_panel(analysis),
    ]


def _figures(analysis: Analysis) -> Element:
    job, time = analysis.job, analysis.job_time
    figures = {
        "Step, mean of all": milliseconds(time.mean_step_ms) if time is not None and of_training_time(time) else None,
        "Step, profiled": milliseconds(job.step_ms),
        "Step, unprofiled": None if job.unprofiled_step_ms is None else milliseconds(job.unprofiled_step_ms),
        "MFU": None if job.mfu is None else percent(job.mfu),
        "HFU": None if job.hfu is None or job.hfu == job.mfu else percent(job.hfu),
    }
    shown = [
        tag("div", tag("dt", title), tag("dd", value), class_="ss-kpi") for title, value in figures.items() if value
    ]
    return tag("dl", shown, class_="ss-kpis")


def style_sheet(file_name: str) -> str:
    """Style sheet of the panels (`panels.css`) or of the report around them (`report.css`)."""
    return (files(__package__) / "assets" / file_name).read_text(encoding="utf-8")
