"""`stepscope nccl`: how a job's GPUs communicate, and what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli.options import enters_only_run, json_option, print_warnings
from stepscope.cli.terminal.console import report_console, report_table
from stepscope.core.documents.nccl import NcclReport, nccl_document
from stepscope.core.errors import printable

if TYPE_CHECKING:
    from rich.table import Table


@click.command("nccl")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@json_option
@enters_only_run
def command(paths: tuple[str, ...], as_json: bool) -> None:
    """Explain how a job's GPUs communicate, whether that is the fastest way, and what went wrong.

    PATH is a log of NCCL_DEBUG=INFO (one for all ranks or one per rank, with any prefix of a launcher), a file of
    NCCL's inspector, an answer of its RAS service, a topology, a folder of such files, or a run directory.
    """
    from stepscope.workflow.nccl import read_nccl

    report = read_nccl(paths)
    if as_json:
        from stepscope.store.documents import encode_document

        click.echo(encode_document(nccl_document(report)).decode())
    else:
        print_nccl(report)
    print_warnings(report.warnings)


MAX_ROWS = 30


def print_nccl(report: NcclReport) -> None:
    """Print the report to stdout."""
    console = report_console()
    if report.versions:
        console.print(f"NCCL {', '.join(map(printable, report.versions))}")
    for table in (_communicators(report), _transports(report), _bandwidths(report), _devices(report), _planned(report)):
        if table.row_count:
            console.print(table)
    if not report.findings:
        console.print("nothing is wrong by these files")
    for finding in report.findings:
        place = f"{finding.file}:{finding.line}" if finding.line else finding.file
        console.print(f"{finding.severity.upper():8} {printable(finding.message)}", soft_wrap=True)
        console.print(f"         {printable(place)}", soft_wrap=True)


def _communicators(report: NcclReport) -> Table:
    table = report_table("communicator", "ranks", "logs of", "nodes", "channels", "NVLS", "network", "joined in")
    for one in report.communicators[:MAX_ROWS]:
        seconds = "" if one.init_seconds is None else f"{one.init_seconds:.2f} s"
        numbers = ["" if number is None else str(number) for number in (one.num_nodes, one.channels, one.nvls_channels)]
        table.add_row(one.id, str(one.num_ranks), str(len(one.ranks)), *numbers, one.network or "", seconds)
    return table


def _transports(report: NcclReport) -> Table:
    """One row for all pairs that use the same transport."""
    rows: dict[tuple[str, bool, str], list[tuple[int, int]]] = {}
    for one in report.transports:
        via = "/".join(filter(None, (one.via, one.detail)))
        rows.setdefault((via, one.ok, one.why), []).append((one.source, one.target))
    table = report_table("via", "ways", "such as", "")
    for (via, is_ok, why), pairs in rows.items():
        source, target = pairs[0]
        table.add_row(via, str(len(pairs)), f"{source} -> {target}", "ok" if is_ok else why)
    return table


def _bandwidths(report: NcclReport) -> Table:
    table = report_table("communicator", "collective", "size", "calls", "bus GB/s", "last to come")
    for one in report.bandwidths[:MAX_ROWS]:
        last = "" if one.last_arriver is None else f"rank {one.last_arriver} ({one.last_share:.0%})"
        table.add_row(one.communicator, one.collective, one.size, str(one.count), f"{one.bus_bandwidth_gbs:,.1f}", last)
    return table


def _devices(report: NcclReport) -> Table:
    table = report_table("machine", "processors", "GPUs", "network cards", "GPU's slot")
    for one in report.devices[:MAX_ROWS]:
        slot = "" if one.gpu_link_gbs is None else f"{one.gpu_link_gbs:g} GB/s"
        table.add_row(_name(one.file), str(one.num_processors), str(one.num_gpus), str(one.num_network_cards), slot)
    return table


def _planned(report: NcclReport) -> Table:
    table = report_table("planned in", "pattern", "channels", "inside a node", "between nodes")
    for one in report.planned[:MAX_ROWS]:
        ways = [f"{by} {gbs:g} GB/s" for by, gbs in ((one.inside, one.inside_gbs), (one.between, one.between_gbs))]
        table.add_row(_name(one.file), one.pattern, str(one.channels), *ways)
    return table


def _name(file: str) -> str:
    return file.rpartition("/")[2]
