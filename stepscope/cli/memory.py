"""`stepscope memory`: what held the GPU's memory, what grows, and why it ran out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli.options import enters_only_run, print_document
from stepscope.cli.terminal.console import report_console, report_table
from stepscope.core.documents.memory import MemoryReport, own_call
from stepscope.core.errors import printable
from stepscope.core.text.numbers import size

if TYPE_CHECKING:
    from rich.table import Table


@click.command("memory")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document; a list of them for several snapshots.")
@enters_only_run
def command(paths: tuple[str, ...], as_json: bool) -> None:
    """Explain what held the GPU's memory at its peak, what grows, and why it ran out.

    PATH is a snapshot of torch.cuda.memory._dump_snapshot(), also gzipped and of any size, a folder of them, or a run
    directory. Nothing in a snapshot is executed.
    """
    from stepscope.workflow.memory import read_memory

    reports = read_memory(paths)
    if as_json:
        documents = [report for _, report in reports]
        print_document(documents[0] if len(documents) == 1 else documents)
    else:
        for name, report in reports:
            print_memory(name, report)
    for name, report in reports:
        for notice in report.warnings:
            click.echo(f"warning: {name}: {notice.message}", err=True)


MAX_ROWS = 12


def print_memory(name: str, report: MemoryReport) -> None:
    """Print the report of a snapshot to stdout."""

    def show(line: str) -> None:
        console.print(line, soft_wrap=True)

    console = report_console()
    show(f"{printable(name)}: GPU {report.device}")
    if report.oom is not None:
        oom = report.oom
        show(f"OUT OF MEMORY  {oom.cause.replace('_', ' ')}, in {oom.phase}")
        for line in oom.evidence:
            show(f"  - {line}")
    show(
        f"peak {size(report.peak_bytes)}; now {size(report.allocated_bytes)} allocated, "
        f"{size(report.reserved_bytes)} reserved, {size(report.fragmentation.inactive_bytes)} of it unused "
        f"(largest piece {size(report.fragmentation.largest_bytes)})"
    )
    if report.growth is not None:
        place = printable(own_call(report.growth.stack))
        where = f", allocated at {place}" if place else ""
        show(f"each of {report.growth.num_steps} steps keeps {size(report.growth.bytes_per_step)}{where}")
    console.print(_holders(report))
    for remedy in report.remedies:
        saves = "" if remedy.saved_bytes is None else f": up to {size(remedy.saved_bytes)}"
        show(f"  > {printable(remedy.change)}{saves}")


def _holders(report: MemoryReport) -> Table:
    table = report_table("at the peak", ">bytes", ">share", ">blocks", "allocated at")
    peak = max(report.peak_bytes, 1)
    for holder in report.at_peak[:MAX_ROWS]:
        place = printable(own_call(holder.stack))
        table.add_row(
            holder.category.value, size(holder.bytes), f"{holder.bytes / peak:.1%}", f"{holder.count:,}", place
        )
    return table
