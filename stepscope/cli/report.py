"""`stepscope report`: the report of a run as one HTML file, to send or to keep beside a CI job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.cli.options import FILE, enters_only_run, fan_out_options

if TYPE_CHECKING:
    from stepscope.workflow.fan_out.engine import FanOut


@click.command("report")
@click.argument("paths", nargs=-1, required=True, metavar="RUN...")
@click.option("-o", "--output", type=FILE, default=Path("stepscope-report.html"), help="Write this file.")
@fan_out_options
@enters_only_run
def command(paths: tuple[str, ...], output: Path, fan_out: FanOut) -> None:
    """Write verdict, time breakdown, time line, communication and kernels as one HTML file that needs no network.

    RUN is a run directory, a folder of traces, trace files, a saved analysis.json, or any fsspec URL. An analysis that
    is kept in the run and up to date is used.
    """
    from stepscope.cli.terminal.progress import file_progress
    from stepscope.workflow.panels.report import report

    with file_progress("reading") as on_progress:
        written = report(paths, output, fan_out=fan_out, on_progress=on_progress)
    click.echo(f"wrote {written} ({written.stat().st_size / 1e3:,.0f} kB)", err=True)
