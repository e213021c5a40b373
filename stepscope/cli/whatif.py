"""`stepscope whatif`: the predicted step time with one cause removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli.options import (
    POSITIVE,
    capture_option,
    enters_only_run,
    fan_out_options,
    json_option,
    print_document,
    print_warnings,
)
from stepscope.cli.terminal.console import report_console, report_table
from stepscope.core.documents.what_if import Fix, WhatIfReport
from stepscope.core.text.wording import cause_phrase

if TYPE_CHECKING:
    from stepscope.workflow.fan_out.engine import FanOut


@click.command("whatif")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--fix", "causes", multiple=True, metavar="CAUSE", help="Predict only this fix; repeatable.  [default: all]"
)
@capture_option()
@click.option("--unprofiled-ms", type=POSITIVE, help="Calibrate to this unprofiled step time.")
@json_option
@enters_only_run
@fan_out_options
def command(
    paths: tuple[str, ...],
    causes: tuple[str, ...],
    capture: int | None,
    unprofiled_ms: float | None,
    as_json: bool,
    fan_out: FanOut,
) -> None:
    """Predict a job's step time with one cause removed at a time, by replaying its traces across ranks.

    PATH is a run directory, a folder or archive of traces, trace files, any fsspec URL (s3://...), or an operation
    table (trace-*.parquet, as ByteDance's StragglerAnalysis reads them).
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
            capture=capture,
            unprofiled_step_ms=unprofiled_ms,
            fan_out=fan_out,
            on_progress=on_progress,
        )
    if as_json:
        print_document(report)
        return

    print_what_if(report)
    print_warnings(report.warnings)


def print_what_if(report: WhatIfReport) -> None:
    """Print the report to stdout."""
    console = report_console()
    console.print(
        f"step {report.measured_step_ms:,.1f} ms measured, {report.replayed_step_ms:,.1f} ms replayed with nothing"
        f" changed ({report.replay_error:+.1%}); ideal {report.ideal_step_ms:,.1f} ms, slowdown {report.slowdown:.3f}"
    )
    if report.unprofiled_step_ms is not None and report.calibrated_replay_ms is not None:
        console.print(
            f"calibrated to {report.unprofiled_step_ms:,.1f} ms without the profiler: host time x "
            f"{report.host_scale:.2f}, replay {report.calibrated_replay_ms:,.1f} ms"
        )
    columns = ("cause", "what is changed", ">step", ">speedup", ">calibrated", "ranks", "then binds")
    table = report_table(*columns, title="One cause removed at a time")
    for fix in report.fixes:
        table.add_row(*_cells(fix))
    console.print(table)
    for who, share in (("slowest workers", report.worst_workers_share), ("last stage", report.last_stage_share)):
        if share is not None:
            console.print(f"evening out the {who} alone removes {share:.1%} of the slowdown")
    for what, slowdowns in (
        ("rank", report.by_rank),
        ("stage", report.by_stage),
        ("replica", report.by_replica),
        ("kind of operation", report.by_operation),
    ):
        if slowdowns:
            worst = sorted(slowdowns.items(), key=lambda item: -item[1])[:8]
            before = "" if slowdowns is report.by_operation else f"{what} "
            shown = ", ".join(f"{before}{name} {slowdown:.3f}x" for name, slowdown in worst)
            console.print(f"slowdown when only one {what} is not ideal: {shown}")


def _cells(fix: Fix) -> tuple[str, ...]:
    calibrated = "" if fix.calibrated_step_ms is None else f"{fix.calibrated_step_ms:,.1f} ms"
    return (
        cause_phrase(fix.fix),
        fix.change,
        f"{fix.step_ms:,.1f} ms",
        f"{fix.speedup:.2f}x",
        calibrated,
        ", ".join(map(str, fix.ranks[:8])),
        "" if fix.binds_next is None else cause_phrase(fix.binds_next),
    )
