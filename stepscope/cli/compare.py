"""`stepscope compare`: whether training became slower, by how much, and what became slower."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.cli.options import FILE, fan_out_options, json_option, print_document, print_warnings

if TYPE_CHECKING:
    from stepscope.workflow.fan_out.engine import FanOut


@click.command("compare")
@click.argument("a")
@click.argument("b")
@click.option(
    "--fail-on",
    multiple=True,
    metavar="METRIC:+N%,...",
    help="Exit with status 1 when a metric surely rose (+) or fell (-) by more (metrics: docs/guides/compare.md).",
)
@json_option
@click.option("--junit", type=FILE, help="Also write a JUnit file with one test case per gate.")
@click.option(
    "--run-spread",
    type=click.FloatRange(min=0, max=100),
    metavar="PERCENT",
    help="Assume that runs of the same code differ by this standard deviation, with fewer than 4 runs.  [default: 1.5]",
)
@fan_out_options
def command(
    a: str,
    b: str,
    fail_on: tuple[str, ...],
    as_json: bool,
    junit: Path | None,
    run_spread: float | None,
    fan_out: FanOut,
) -> None:
    """Compare B with A: step time, time breakdown, causes, kernels, collectives; report only significant changes.

    A and B are runs, folders of traces, saved analysis.json files, or sets of these: separated by commas, a directory
    of runs, a glob.
    """
    from stepscope.analyzer.compare.comparison import RUN_SPREAD
    from stepscope.cli.terminal.progress import file_progress
    from stepscope.core.documents.comparison import GateOutcome
    from stepscope.store.files import check_writable, write_whole
    from stepscope.workflow.compare import compare
    from stepscope.workflow.junit import gates_as_junit

    if junit is not None:
        check_writable(junit)
    with file_progress("comparing") as on_progress:
        spread = RUN_SPREAD if run_spread is None else run_spread / 100
        comparison = compare(a, b, fail_on=fail_on, assumed_spread=spread, fan_out=fan_out, on_progress=on_progress)
    any_failed = any(gate.outcome is GateOutcome.FAILED for gate in comparison.gates)
    try:
        if junit is not None:
            write_whole(junit, gates_as_junit(comparison))
    finally:  # the comparison is shown even if the file cannot be written
        try:
            if as_json:
                print_document(comparison)
            else:
                from stepscope.cli.terminal.comparison import print_comparison

                print_comparison(comparison)
                print_warnings(comparison.warnings)
        except BrokenPipeError:  # as in `compare ... | head -1`
            if not any_failed:
                raise
    if any_failed:
        click.get_current_context().exit(1)
