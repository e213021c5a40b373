"""`stepscope memory`: what held the GPU's memory, what grows, and why it ran out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli.options import enters_only_run, print_document, print_warnings
from stepscope.cli.terminal.console import report_console, report_table
from stepscope.core.documents.memory import Compared, JobKind, MemoryComparison, MemoryReport, own_call
from stepscope.core.errors import printable
from stepscope.core.text.numbers import counted, size

if TYPE_CHECKING:
    from rich.table import Table


@click.command("memory")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--compare", "is_comparison", is_flag=True, help="Compare two PATHs: two times of a process or two ranks."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document; a list of them for several snapshots.")
@enters_only_run
def command(paths: tuple[str, ...], is_comparison: bool, as_json: bool) -> None:
    """Explain what held the GPU's memory at its peak, what grows, and why it ran out.

    PATH is a snapshot of torch.cuda.memory._dump_snapshot(), also gzipped and of any size, a folder of them, or a run
    directory. Nothing in a snapshot is executed.
    """
    if is_comparison:
        _compare(paths, as_json=as_json)
        return
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


def _compare(paths: tuple[str, ...], *, as_json: bool) -> None:
    from stepscope.workflow.memory import read_memory_comparison

    if len(paths) != 2:
        raise click.UsageError(f"--compare takes two snapshots, not {len(paths)}")
    comparison = read_memory_comparison(*paths)
    if as_json:
        print_document(comparison)
    else:
        print_comparison(comparison)
    print_warnings(comparison.warnings)


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
    for pool in report.private_pools[:MAX_ROWS]:
        segments = counted(pool.num_segments, "segment")
        show(
            f"private pool {pool.id[0]}, {pool.id[1]} (CUDA graphs or MemPool): {size(pool.reserved_bytes)} reserved "
            f"in {segments}, {size(pool.inactive_bytes)} of it unused"
        )
    if report.growth is not None:
        place = printable(own_call(report.growth.stack))
        where = f", allocated at {place}" if place else ""
        show(f"each of {report.growth.num_steps} steps keeps {size(report.growth.bytes_per_step)}{where}")
    console.print(_holders(report))
    if report.job is not JobKind.TRAINING:
        kind = "inference" if report.job is JobKind.INFERENCE else "not known whether this is training"
        show(f"{kind}: no backward pass and no optimizer is in the snapshot, so no advice for training is given")
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


def print_comparison(comparison: MemoryComparison) -> None:
    """Print the comparison of two snapshots to stdout."""
    console = report_console()
    for label, file, device in zip(("first", "second"), comparison.files, comparison.devices, strict=True):
        console.print(f"{label:6}  {printable(file)}: GPU {device}", soft_wrap=True)
    totals = report_table("", ">first", ">second", ">change")
    rows = {
        "allocated at the end": comparison.allocated,
        "reserved": comparison.reserved,
        "  unused": comparison.inactive,
        "  unused in private pools": comparison.private_pools,
        "peak": comparison.peak,
    }
    for name, compared in rows.items():
        totals.add_row(name, *_compared(compared))
    console.print(totals)
    columns = (">end: first", ">second", ">change", ">peak: first", ">second", ">change", "allocated at")
    holders = report_table("what differs", *columns)
    for holder in comparison.holders[:MAX_ROWS]:
        holders.add_row(holder.category.value, *_compared(holder.end), *_compared(holder.peak), printable(holder.place))
    console.print(holders)


def _compared(compared: Compared) -> tuple[str, str, str]:
    sign = "+" if compared.change > 0 else "-"
    change = f"{sign}{size(abs(compared.change))}" if compared.change else "0 B"
    return size(compared.first), size(compared.second), change
