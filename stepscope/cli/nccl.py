"""`stepscope nccl`: how a job's GPUs communicate, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from stepscope.cli.options import enters_only_run, fetches_records, json_option
from stepscope.cli.terminal.answers import print_warnings
from stepscope.cli.terminal.console import report_console, report_table
from stepscope.core.documents.nccl import (
    MEAN_OVER_SIZES,
    NOTHING_CHECKED,
    NcclReport,
    NetworkUse,
    RasSummary,
    nccl_document,
)
from stepscope.core.errors import printable
from stepscope.core.text.numbers import counted, listed, size

if TYPE_CHECKING:
    from rich.table import Table


@click.command("nccl")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@json_option
@fetches_records
@enters_only_run
def nccl_command(paths: tuple[str, ...], as_json: bool) -> None:
    """Explain how a job's GPUs communicate, whether that is the fastest way, and what went wrong.

    PATH is a log of NCCL_DEBUG=INFO (one for all ranks or one per rank, with any prefix of a launcher), a file of
    NCCL's inspector, an answer of its RAS service, output of nccl-tests, a topology, a folder of such files, or a run
    directory. One file may hold several of them.
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
    for line in facts(report):
        console.print(printable(line), soft_wrap=True)
    tables = (
        _communicators(report),
        _transports(report),
        _benchmarks(report),
        _bandwidths(report),
        _devices(report),
        _planned(report),
    )
    for table in tables:
        if table.row_count:
            console.print(table)
    is_checked = all(notice.code != NOTHING_CHECKED for notice in report.warnings)  # else the warning says it
    if not report.findings and is_checked:
        console.print("nothing is wrong by these files")
    for finding in report.findings:
        place = f"{finding.file}:{finding.line}" if finding.line else finding.file
        console.print(f"{finding.severity.upper():8} {printable(finding.message)}", soft_wrap=True)
        console.print(f"         {printable(place)}", soft_wrap=True)


def facts(report: NcclReport) -> Iterator[str]:
    """Lines on what was found, also where nothing is wrong."""
    if report.versions:
        yield f"NCCL      {', '.join(report.versions)}"
    if report.cuda_drivers:
        yield f"Driver    CUDA {', '.join(report.cuda_drivers)}"
    if report.machines:
        processes = f", {counted(report.num_processes, 'process')}" if report.num_processes else ""
        yield f"Machines  {len(report.machines)}: {listed(report.machines)}{processes}"
    for network in report.networks:
        yield f"Network   {_network_words(network, report)}"
    if report.settings:
        yield f"Settings  {listed((f'{one.name}={one.value}' for one in report.settings), MAX_ROWS)}"
    for ras in report.ras:
        yield f"RAS       {_ras_words(ras)}"


def _network_words(network: NetworkUse, report: NcclReport) -> str:
    is_infiniband = network.name.startswith("IB")
    words = f"NET/{network.name}" if network.name == "Socket" or is_infiniband else network.name
    words += f" over {listed(network.cards)}" if network.cards else ""
    if network.direct_memory is not None:
        words += f", {'with' if network.direct_memory else 'without'} GPUDirect RDMA"
    words += f": {network.why}" if network.why else ""
    is_on_all = len(report.networks) == 1 or not network.machines
    return words if is_on_all else f"{words} (on {listed(network.machines, 4)})"


def _ras_words(ras: RasSummary) -> str:
    numbers = [
        counted(number, noun) for number, noun in ((ras.num_gpus, "GPU"), (ras.num_nodes, "node")) if number is not None
    ]
    rows = [
        f"{counted(row.communicators, 'communicator')} of {counted(row.num_ranks, 'rank')} "
        f"{', '.join(filter(None, (row.status, row.errors)))}"
        for row in ras.communicators[:MAX_ROWS]
    ]
    version = f"NCCL {ras.version}" if ras.version else ""
    return "; ".join(filter(None, (version, " on ".join(numbers), *rows))) or "no communicator"


def _communicators(report: NcclReport) -> Table:
    table = report_table("communicator", "ranks", "logs of", "nodes", "channels", "NVLS", "network", "joined in")
    for one in report.communicators[:MAX_ROWS]:
        seconds = "" if one.init_seconds is None else f"{one.init_seconds:.2f} s"
        if one.init_parts and one.init_seconds:
            part, longest = max(one.init_parts.items(), key=lambda entry: entry[1])
            seconds += f" ({part} {longest:.2f})"
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


def _benchmarks(report: NcclReport) -> Table:
    table = report_table("nccl-tests", "ranks", "sizes", "peak bus GB/s", "at", "mean bus GB/s", "")
    for one in report.benchmarks[:MAX_ROWS]:
        peak, mean = ["" if rate is None else f"{rate:,.2f}" for rate in (one.peak_bus_gbs, one.mean_bus_gbs)]
        at = "" if one.peak_bytes is None else size(one.peak_bytes)
        sizes = ""
        if one.sizes:
            sizes = f"{len(one.sizes)}: {size(one.sizes[0].bytes)} to {size(one.sizes[-1].bytes)}"
        ended = "ok" if one.ok else "no end in this file" if one.ok is None else one.why
        ended += ", rows missing" if one.has_missing_rows else ""
        ranks = "" if one.num_ranks is None else str(one.num_ranks)
        table.add_row(printable(one.test), ranks, sizes, peak, at, mean, printable(ended))
    return table


def _bandwidths(report: NcclReport) -> Table:
    table = report_table("communicator", "collective", "size", "calls", "bus GB/s", "last to come")
    measured = [one for one in report.bandwidths if one.size != MEAN_OVER_SIZES]
    for one in measured[:MAX_ROWS]:
        last = "" if one.last_arriver is None else f"rank {one.last_arriver} ({one.last_share:.0%})"
        table.add_row(one.communicator, one.collective, one.size, str(one.count), f"{one.bus_bandwidth_gbs:,.1f}", last)
    return table


def _devices(report: NcclReport) -> Table:
    kinds = sorted({one.links for one in report.devices} - {""}) or ["NVLink"]
    links = f"GPU's {' or '.join('NVLinks' if kind == 'NVLink' else kind for kind in kinds)}"
    table = report_table("machine", "processors", "GPUs", "GPU's slot", links, "network cards", "a card's rate")
    for one in report.devices[:MAX_ROWS]:
        slot, nvlink, card = [
            "" if gbs is None else f"{gbs:g} GB/s" for gbs in (one.gpu_link_gbs, one.nvlink_gbs, one.network_card_gbs)
        ]
        if one.nvlinks is not None and not nvlink:
            nvlink = str(one.nvlinks)
        numbers = map(str, (one.num_processors, one.num_gpus, one.num_network_cards))
        processors, gpus, cards = numbers
        name = printable(one.machine) or _name(one.file)
        table.add_row(name, processors, gpus, slot, nvlink, cards, card)
    return table


def _planned(report: NcclReport) -> Table:
    table = report_table("planned in", "pattern", "channels", "inside a node", "between nodes")
    for one in report.planned[:MAX_ROWS]:
        ways = [f"{by} {gbs:g} GB/s" for by, gbs in ((one.inside, one.inside_gbs), (one.between, one.between_gbs))]
        table.add_row(_name(one.file), one.pattern, str(one.channels), *ways)
    return table


def _name(file: str) -> str:
    return file.rpartition("/")[2]
