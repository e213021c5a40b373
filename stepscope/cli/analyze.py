"""`stepscope analyze`: the time breakdown of a job's traces, its causes and the verdict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.cli.options import (
    FILE,
    POSITIVE,
    capture_option,
    enters_only_run,
    fan_out_options,
    json_option,
    print_document,
    print_warnings,
)

if TYPE_CHECKING:
    from stepscope.core.documents.analysis import CaptureAnalyses
    from stepscope.workflow.analyze import AnalysisResult
    from stepscope.workflow.fan_out.engine import FanOut


@click.command("analyze")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@json_option
@click.option(
    "--window",
    type=click.Choice(["steps", "file"]),
    default="steps",
    help="Analyze the profiled steps, or whole files.",
)
@capture_option(takes_all=True)
@click.option("--network-gbits", type=POSITIVE, metavar="N", help="Assume N Gbit/s of each GPU's network card.")
@click.option("--html", type=FILE, metavar="FILE", help="Also write the report as one HTML file.")
@click.option("--keep/--no-keep", default=True, help="Keep the result in the run directory, if one is given.")
@fan_out_options
@enters_only_run
def command(
    paths: tuple[str, ...],
    as_json: bool,
    window: str,
    capture: int | str | None,
    network_gbits: float | None,
    html: Path | None,
    keep: bool,
    fan_out: FanOut,
) -> None:
    """Attribute all GPU time to categories, follow each wait to its cause, and give a verdict.

    PATH is a run directory, a folder or archive (tar, tar.gz, zip) of traces, trace files, or any fsspec URL (s3://...).
    """
    from stepscope.cli.terminal.progress import file_progress
    from stepscope.workflow.analyze import analyze, analyze_captures

    network = None if network_gbits is None else network_gbits * 1e9 / 8
    if capture == "all":
        if html is not None:
            raise click.UsageError("--html writes one analysis: choose a capture by its number")
        with file_progress("reading") as on_progress:
            analyses = analyze_captures(
                paths,
                whole_file=window == "file",
                network_bytes_per_second=network,
                fan_out=fan_out,
                on_progress=on_progress,
            )
        _show_all(analyses, as_json=as_json)
        return
    if html is not None:
        from stepscope.store.files import check_writable

        check_writable(html)
    with file_progress("reading") as on_progress:
        result = analyze(
            paths,
            whole_file=window == "file",
            capture=None if capture is None else int(capture),
            keep=keep,
            with_timelines=html is not None,
            network_bytes_per_second=network,
            fan_out=fan_out,
            on_progress=on_progress,
        )
    try:
        if html is not None:
            from stepscope.workflow.panels.report import title_of, write_report

            write_report(result.analysis, result.timelines, html, title=title_of(paths))
    finally:  # the verdict is shown even if the file cannot be written
        _show(result, as_json=as_json)


def _show(result: AnalysisResult, *, as_json: bool) -> None:
    if as_json:
        print_document(result.analysis)
        return
    from stepscope.cli.terminal.analysis import print_analysis

    print_analysis(result.analysis)
    print_warnings(result.analysis.warnings)
    if result.kept_in is not None:
        click.echo(f"kept in {result.kept_in}; see it with: stepscope dashboard --runs {result.kept_in}", err=True)


def _show_all(analyses: CaptureAnalyses, *, as_json: bool) -> None:
    if as_json:
        print_document(analyses)
        return
    from stepscope.cli.terminal.analysis import print_analysis

    for one in analyses.captures:
        click.echo(f"CAPTURE {one.capture}")
        print_analysis(one.analysis)
        print_warnings(one.analysis.warnings)
    print_warnings(analyses.warnings)
