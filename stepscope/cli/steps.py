"""`stepscope steps`: the duration of every step of a run, profiled or not."""

from __future__ import annotations

import click

from stepscope.cli.options import enters_only_run, print_document, print_warnings


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
        from stepscope.cli.terminal.steps import print_steps

        print_steps(report, last)
    print_warnings(report.warnings)
