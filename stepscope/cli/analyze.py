"""`stepscope analyze`: where the time of a job's traces goes, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.cli.options import fan_out_options

if TYPE_CHECKING:
    from stepscope.workflow.analyze import AnalysisResult
    from stepscope.workflow.fan_out.engine import FanOut


@click.command("analyze")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--json", "as_json", is_flag=True, help="Print the analysis as one JSON document.")
@click.option(
    "--window",
    type=click.Choice(["steps", "file"]),
    default="steps",
    show_default=True,
    help="Book the profiled steps, or first to last device activity of each file.",
)
@click.option(
    "--network-gbits",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="Gbit/s of each GPU's network card: what collectives between hosts should reach.",
)
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Also write one HTML file of it."
)
@click.option("--keep/--no-keep", default=True, show_default=True, help="Keep the result in a run directory.")
@fan_out_options
def command(
    paths: tuple[str, ...],
    as_json: bool,
    window: str,
    network_gbits: float | None,
    html: Path | None,
    keep: bool,
    fan_out: FanOut,
) -> None:
    """Book every instant of every step, follow waits to their cause, give a verdict.

    PATH is a run directory, a folder of traces, trace files, or any fsspec URL (s3://...).
    """
    from stepscope.cli.terminal.progress import file_progress
    from stepscope.workflow.analyze import analyze

    if html is not None:
        from stepscope.store.files import check_writable

        check_writable(html)
    with file_progress("reading") as on_progress:
        result = analyze(
            paths,
            whole_file=window == "file",
            keep=keep,
            with_timelines=html is not None,
            network_bytes_per_second=None if network_gbits is None else network_gbits * 1e9 / 8,
            fan_out=fan_out,
            on_progress=on_progress,
        )
    try:
        if html is not None:
            from stepscope.workflow.panels.report import title_of, write_report

            write_report(result.analysis, result.timelines, html, title=title_of(paths))
    finally:  # the verdict is shown all the same
        _show(result, as_json=as_json)


def _show(result: AnalysisResult, *, as_json: bool) -> None:
    from stepscope.store.documents import encode_document

    if as_json:
        click.echo(encode_document(result.analysis).decode())
        return
    from stepscope.cli.terminal.analysis import print_analysis

    print_analysis(result.analysis)
    for notice in result.analysis.warnings:
        click.echo(f"warning: {notice.message}", err=True)
    if result.kept_in is not None:
        click.echo(f"kept in {result.kept_in}; see it with: stepscope dashboard --runs {result.kept_in}", err=True)
