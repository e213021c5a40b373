"""`stepscope whatif`: the predicted step time with one cause removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli.options import (
    POSITIVE,
    enters_only_run,
    fan_out_options,
    json_option,
    print_document,
    print_warnings,
)

if TYPE_CHECKING:
    from stepscope.workflow.fan_out.engine import FanOut


@click.command("whatif")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--fix",
    "causes",
    multiple=True,
    metavar="CAUSE",
    help="Predict only this fix; repeatable.  [default: all]",
)
@click.option("--unprofiled-ms", type=POSITIVE, help="Calibrate to this unprofiled step time.")
@json_option
@enters_only_run
@fan_out_options
def command(
    paths: tuple[str, ...], causes: tuple[str, ...], unprofiled_ms: float | None, as_json: bool, fan_out: FanOut
) -> None:
    """Predict a job's step time with one cause removed at a time, by replaying its traces across ranks.

    PATH is a run directory, a folder of traces, trace files, any fsspec URL (s3://...), or an operation table
    (trace-*.parquet, as ByteDance's StragglerAnalysis reads them).
    """
    from stepscope.cli.terminal.progress import file_progress
    from stepscope.core.vocabulary import Cause
    from stepscope.workflow.what_if import FIXABLE, what_if

    unknown = [cause for cause in causes if cause not in FIXABLE]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is not one of: {', '.join(sorted(FIXABLE))}", param_hint="--fix")
    with file_progress("reading") as on_progress:
        report = what_if(
            paths,
            causes=[Cause(cause) for cause in causes],
            unprofiled_step_ms=unprofiled_ms,
            fan_out=fan_out,
            on_progress=on_progress,
        )
    if as_json:
        print_document(report)
        return
    from stepscope.cli.terminal.whatif import print_what_if

    print_what_if(report)
    print_warnings(report.warnings)
