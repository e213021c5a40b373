"""Predicted step times in a terminal: the verdict that is kept beside the traces, then one cause removed at a time."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from stepscope.analyzer.what_if.training_step import training_step_ms
from stepscope.cli.terminal.analysis import print_verdict_head
from stepscope.cli.terminal.console import print_hanging, report_console, report_table
from stepscope.core.documents.analysis import Analysis
from stepscope.core.documents.what_if import WhatIfInput, WhatIfReport
from stepscope.core.text.numbers import listed
from stepscope.core.text.wording import cause_phrase


def print_what_if(report: WhatIfReport, analysis: Analysis | None) -> None:
    """Print the predicted step times to stdout.

    Args:
        analysis: of the same run, where one is kept: gains are then given per step of training time as well.
    """
    console = report_console()
    if analysis is not None:
        print_verdict_head(console, analysis)
    steps = "steps" if report.input is WhatIfInput.OPERATION_TABLE else "profiled steps"
    numbered = f"{steps} {listed(report.steps)}" if report.steps else steps
    print_hanging(
        console,
        f"Replay of {numbered}: {report.measured_step_ms:,.1f} ms per step measured, {report.replayed_step_ms:,.1f} ms "
        f"replayed with nothing changed (model error {abs(report.replay_error):.1%}); ideal "
        f"{report.ideal_step_ms:,.1f} ms, slowdown {report.slowdown:.3f}",
    )
    if report.unprofiled_step_ms is not None and report.calibrated_replay_ms is not None:
        print_hanging(
            console,
            f"Calibrated to {report.unprofiled_step_ms:,.1f} ms per step without the profiler: CPU time x "
            f"{report.host_scale:.2f}, replay {report.calibrated_replay_ms:,.1f} ms",
        )
    console.print(_fixes_table(report, analysis, steps))
    _print_slowdowns(console, report)


def _fixes_table(report: WhatIfReport, analysis: Analysis | None, steps: str) -> Table:
    training = [
        None if analysis is None else training_step_ms(fix, report.replayed_step_ms, analysis) for fix in report.fixes
    ]
    on_cpu = report.device_kind == "cpu"
    columns = {
        "cause": [cause_phrase(fix.fix, on_cpu=on_cpu) for fix in report.fixes],
        "what is changed": [fix.change for fix in report.fixes],
        ">training step": [_milliseconds(ms) for ms in training],
        ">profiled step": [_milliseconds(fix.step_ms) for fix in report.fixes],
        ">speedup": [f"{fix.speedup:.2f}x" for fix in report.fixes],
        ">calibrated": [_milliseconds(fix.calibrated_step_ms) for fix in report.fixes],
        "ranks": [listed(fix.ranks) if len(report.by_rank) > 1 else "" for fix in report.fixes],
        "next bottleneck": [
            "" if fix.binds_next is None else cause_phrase(fix.binds_next, on_cpu=on_cpu) for fix in report.fixes
        ],
    }
    columns = {title: cells for title, cells in columns.items() if any(cells)}
    both = f"per step of training time and of the {steps}"
    of_what = both if ">training step" in columns else f"gains of the {steps} alone"
    if report.input is WhatIfInput.OPERATION_TABLE:
        columns = {title.replace("profiled ", ""): cells for title, cells in columns.items()}
    table = report_table(*columns, title=f"One cause removed at a time, {of_what}")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table


def _milliseconds(ms: float | None) -> str:
    return "" if ms is None else f"{ms:,.1f} ms"


def _print_slowdowns(console: Console, report: WhatIfReport) -> None:
    for who, share in (
        ("slowest workers", report.worst_workers_share),
        ("last stage", report.last_stage_share),
    ):
        if share is not None:
            print_hanging(console, f"Evening out the {who} alone removes {share:.1%} of the slowdown")
    for what, slowdowns in (
        ("rank", report.by_rank),
        ("stage", report.by_stage),
        ("replica", report.by_replica),
        ("kind of operation", report.by_operation),
    ):
        if len(slowdowns) > 1:
            worst = sorted(slowdowns.items(), key=lambda item: -item[1])[:8]
            before = "" if slowdowns is report.by_operation else f"{what} "
            shown = ", ".join(f"{before}{name} {slowdown:.3f}x" for name, slowdown in worst)
            print_hanging(console, f"Slowdown when only one {what} is not ideal: {shown}")
