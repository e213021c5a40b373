"""`stepscope steps`: the duration of every step of a run, profiled or not, or of a framework's log."""

from __future__ import annotations

import click

from stepscope.cli.options import enters_only_run, print_document, print_warnings
from stepscope.cli.terminal.console import report_console, report_table
from stepscope.core.documents.steps import DATA_WAIT, LongWait, StepReport, StepRow
from stepscope.core.errors import printable
from stepscope.core.text.numbers import counted, ranks_words


@click.command("steps")
@click.argument("path", metavar="RUN")
@click.option("--last", type=click.IntRange(min=1), metavar="N", default=20, help="Show the last N steps.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, with all steps.")
@enters_only_run
def command(path: str, last: int, as_json: bool) -> None:
    """Show how long the steps of a run took, and which ranks the others waited for.

    RUN is a run directory, an output folder of torchtitan with its structured_logs, or the console log of
    Megatron-LM, Megatron-DeepSpeed, torchtitan, Primus or the Hugging Face Trainer, also compressed, with colours and
    with prefixes of ranks and hosts.
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
_MAX_PHASES = 6
_MAX_WAITS = 8


def print_steps(report: StepReport, last: int) -> None:
    """Print the summary and the `last` steps to stdout."""
    console = report_console()
    console.print(_headline(report), soft_wrap=True)
    for wait in _longest(report.long_waits):
        console.print(f"  - {_wait_words(wait)}", soft_wrap=True)
    if len(report.long_waits) > _MAX_WAITS:
        console.print(f"  - {len(report.long_waits) - _MAX_WAITS} more long waits are in --json")
    phases = sorted(sorted(report.phases, key=lambda name: -report.phases[name])[:_MAX_PHASES])
    figures = [name for name in _SHOWN if any(name in row.figures for row in report.steps)]
    has_means = any(row.num_steps > 1 for row in report.steps)
    has_slowest = any(row.slowest_rank is not None for row in report.steps)
    has_waiting = any(row.data_wait_rank is not None for row in report.steps)
    has_waits = report.data_wait is not None or any(row.data_wait_ms for row in report.steps)
    columns = [
        *(["mean of"] if has_means else []),
        "ms",
        *(["slowest rank"] if has_slowest else []),
        *(["data wait"] if has_waits else []),
        *(["of rank"] if has_waiting else []),
        *phases,
        *figures,
    ]
    table = report_table("step", *(f">{name}" for name in columns), "")
    waits = {wait.step: wait for wait in report.long_waits}
    for row in report.steps[-last:]:
        table.add_row(
            str(row.index),
            *([str(row.num_steps)] if has_means else []),
            f"{row.ms:,.1f}",
            *([_rank(row.slowest_rank)] if has_slowest else []),
            *([f"{row.data_wait_ms:,.1f}"] if has_waits else []),
            *([_rank(row.data_wait_rank)] if has_waiting else []),
            *(f"{row.phases_ms[name]:,.1f}" if name in row.phases_ms else "" for name in phases),
            *(f"{row.figures[name]:.4g}" if name in row.figures else "" for name in figures),
            _remark(row, waits.get(row.index)),
        )
    console.print(table)


def _rank(rank: int | None) -> str:
    return "" if rank is None else str(rank)


def _longest(waits: list[LongWait]) -> list[LongWait]:
    """The longest waits in order of their steps."""
    return sorted(sorted(waits, key=lambda wait: -wait.ms)[:_MAX_WAITS], key=lambda wait: wait.step)


def _wait_words(wait: LongWait) -> str:
    who = ranks_words(wait.ranks) if wait.ranks else "a rank"
    what = "waited for data" if wait.name == DATA_WAIT else f"was in {printable(wait.name)}"
    return (
        f"step {wait.step}: {who} {what} for {wait.ms:,.1f} ms (usually {wait.usual_ms:,.1f}); "
        f"the step took {wait.step_ms:,.1f} ms (usually {wait.usual_step_ms:,.1f})"
    )


def _headline(report: StepReport) -> str:
    counts = counted(report.num_steps, "step")
    parts = [
        f"{counts} of {counted(len(report.ranks), 'rank')}" if report.ranks else f"{counts} in a log of {report.source}"
    ]
    times = report.step_ms
    if times.p50 is not None:
        parts.append(f"median {times.p50:,.1f} ms, p95 {times.p95:,.1f}, longest {times.max:,.1f}")
        if report.num_settled < report.num_steps:
            parts.append(f"without the first and captured ones: {report.num_settled}")
    if report.data_wait is not None:
        parts.append(f"waiting for data {report.data_wait:.1%}{_longest_share(report)}")
    parts += [f"{name} {share:.1%}" for name, share in _largest(report.phases)]
    return "; ".join(parts)


def _longest_share(report: StepReport) -> str:
    """The share by the longest wait of each step, where it differs from the mean over the ranks."""
    longest, mean = report.longest_data_wait, report.data_wait
    differs = longest is not None and mean is not None and longest - mean >= _MIN_DIFFERENCE
    return f" ({longest:.1%} by the rank that waits longest at each step)" if differs else ""


_MIN_DIFFERENCE = 0.01


def _largest(phases: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(sorted(phases.items(), key=lambda entry: -entry[1])[:_MAX_PHASES])


def _remark(row: StepRow, wait: LongWait | None) -> str:
    long = [] if wait is None else [f"long wait: {'data' if wait.name == DATA_WAIT else printable(wait.name)}"]
    return ", ".join([*(["captured"] if row.captured else []), *row.anomalies, *long])
