"""`stepscope steps`: the duration of every step of a run, profiled or not."""

from __future__ import annotations

import click

from stepscope.cli.options import enters_only_run, print_document, print_warnings
from stepscope.cli.terminal.console import report_console, report_table
from stepscope.core.documents.run_directory import StepReport, StepRow
from stepscope.core.text.numbers import counted


@click.command("steps")
@click.argument("path", metavar="RUN")
@click.option("--last", type=click.IntRange(min=1), metavar="N", default=20, help="Show the last N steps.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, with all steps.")
@enters_only_run
def command(path: str, last: int, as_json: bool) -> None:
    """Show how long the steps of a run took, from the records that its ranks wrote at every step.

    RUN is a run directory, or an output folder of torchtitan with its structured_logs.
    """
    from stepscope.workflow.steps import read_steps

    report = read_steps(path)
    if as_json:
        print_document(report)
    else:
        print_steps(report, last)
    print_warnings(report.warnings)


_SHOWN = ("loss", "grad_norm")
"""Figures with a column of their own where a step has them."""


def print_steps(report: StepReport, last: int) -> None:
    """Print the summary and the `last` steps to stdout."""
    console = report_console()
    console.print(_headline(report))
    phases = sorted({name for row in report.steps for name in row.phases_ms})
    figures = [name for name in _SHOWN if any(name in row.figures for row in report.steps)]
    numbers = (f">{name}" for name in ("ms", "slowest rank", "data wait", *phases, *figures))
    table = report_table("step", *numbers, "")
    for row in report.steps[-last:]:
        table.add_row(
            str(row.index),
            f"{row.ms:,.1f}",
            str(row.slowest_rank),
            f"{row.data_wait_ms:,.1f}",
            *(f"{row.phases_ms[name]:,.1f}" if name in row.phases_ms else "" for name in phases),
            *(f"{row.figures[name]:.4g}" if name in row.figures else "" for name in figures),
            _remark(row),
        )
    console.print(table)


def _headline(report: StepReport) -> str:
    parts = [f"{counted(report.num_steps, 'step')} of {counted(len(report.ranks), 'rank')}"]
    times = report.step_ms
    if times.p50 is not None:
        parts.append(f"median {times.p50:,.1f} ms, p95 {times.p95:,.1f}, longest {times.max:,.1f}")
        parts.append(f"without the first and captured ones: {report.num_settled}")
    if report.data_wait is not None:
        parts.append(f"waiting for data {report.data_wait:.1%}")
    parts += [f"{name} {share:.1%}" for name, share in report.phases.items()]
    return "; ".join(parts)


def _remark(row: StepRow) -> str:
    return ", ".join([*(["captured"] if row.captured else []), *row.anomalies])
