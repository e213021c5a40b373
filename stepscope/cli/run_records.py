"""Verbs that read what a run recorded beside its traces: hang, memory, nccl, steps."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from stepscope.cli.options import enters_only_run, json_option, print_document, print_report, print_warnings
from stepscope.cli.terminal.console import report_console, report_table
from stepscope.core.documents.hang import HangReport, WaitingGroup, group_words
from stepscope.core.documents.memory import MemoryReport, own_call
from stepscope.core.documents.nccl import NcclReport, nccl_document
from stepscope.core.documents.run_directory import StepReport
from stepscope.core.errors import printable
from stepscope.core.text.numbers import counted, form, ranks_words, size
from stepscope.core.text.wording import cause_phrase
from stepscope.core.vocabulary import Cause

if TYPE_CHECKING:
    from rich.table import Table


@click.command("hang")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@json_option
@enters_only_run
def hang_command(paths: tuple[str, ...], as_json: bool) -> None:
    """Find the ranks that hold a job up, from the dumps of torch's flight recorder.

    PATH is a dump (pickle or JSON, NCCL or gloo, any name that ends with the rank), a folder of them, or a run
    directory. Nothing in a dump is executed.
    """
    from stepscope.workflow.run_records import read_hang

    print_report(read_hang(paths), _print_hang, as_json=as_json)


def _print_hang(report: HangReport) -> None:
    verdict = report.verdict
    kind = f", {verdict.kind}" if verdict.kind else ""
    cause = cause_phrase(Cause(verdict.cause)) if verdict.cause in frozenset(Cause) else verdict.cause
    lines = [f"VERDICT  {cause}{kind}  (confidence {verdict.confidence:.0%})"]
    lines.append(f"  {verdict.summary}")
    lines += [f"  - {ranks_words(one.ranks)}: {one.message}" for one in verdict.evidence]
    lines += [f"  > {action}" for action in verdict.actions]
    missing = f"; no dump of {ranks_words(report.missing_ranks)}" if report.missing_ranks else ""
    lines.append(f"{counted(len(report.ranks), 'dump')}{missing}")
    for group in report.groups:
        lines.append(f"{ranks_words(group.ranks)}: {_place_of_group(group)}")
        lines += [f"    {frame}" for frame in group.stack]
    click.echo("\n".join(map(printable, lines)))


def _place_of_group(group: WaitingGroup) -> str:
    if group.operation is None:
        return "no collective is open" + ("; the last was called from" if group.stack else "")
    name = group_words(group.process_group, group.description)
    waits = f", {form(len(group.ranks), 'waits', 'wait')} for {ranks_words(group.waits_for)}" if group.waits_for else ""
    return f"in {group.operation} {group.sequence} of {name}{waits}"


@click.command("memory")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document; a list of them for several snapshots.")
@enters_only_run
def memory_command(paths: tuple[str, ...], as_json: bool) -> None:
    """Explain what held the GPU's memory at its peak, what grows, and why it ran out.

    PATH is a snapshot of torch.cuda.memory._dump_snapshot(), also gzipped and of any size, a folder of them, or a run
    directory. Nothing in a snapshot is executed.
    """
    from stepscope.workflow.run_records import read_memory

    reports = read_memory(paths)
    if as_json:
        documents = [report for _, report in reports]
        print_document(documents[0] if len(documents) == 1 else documents)
    else:
        for name, report in reports:
            _print_memory(name, report)
    for name, report in reports:
        for notice in report.warnings:
            click.echo(f"warning: {name}: {notice.message}", err=True)


MAX_HOLDERS = 12


def _print_memory(name: str, report: MemoryReport) -> None:
    """Print the report of a memory snapshot to stdout."""

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
    for holder in report.at_peak[:MAX_HOLDERS]:
        place = printable(own_call(holder.stack))
        table.add_row(
            holder.category.value, size(holder.bytes), f"{holder.bytes / peak:.1%}", f"{holder.count:,}", place
        )
    return table


@click.command("nccl")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@json_option
@enters_only_run
def nccl_command(paths: tuple[str, ...], as_json: bool) -> None:
    """Explain how a job's GPUs communicate, whether that is the fastest way, and what went wrong.

    PATH is a log of NCCL_DEBUG=INFO (one for all ranks or one per rank, with any prefix of a launcher), a file of
    NCCL's inspector, an answer of its RAS service, a topology, a folder of such files, or a run directory.
    """
    from stepscope.workflow.run_records import read_nccl

    report = read_nccl(paths)
    if as_json:
        from stepscope.store.documents import encode_document

        click.echo(encode_document(nccl_document(report)).decode())
    else:
        _print_nccl(report)
    print_warnings(report.warnings)


MAX_NCCL_ROWS = 30


def _print_nccl(report: NcclReport) -> None:
    """Print the report on a job's NCCL communication to stdout."""
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
    for one in report.communicators[:MAX_NCCL_ROWS]:
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
    for one in report.bandwidths[:MAX_NCCL_ROWS]:
        last = "" if one.last_arriver is None else f"rank {one.last_arriver} ({one.last_share:.0%})"
        table.add_row(one.communicator, one.collective, one.size, str(one.count), f"{one.bus_bandwidth_gbs:,.1f}", last)
    return table


def _devices(report: NcclReport) -> Table:
    table = report_table("machine", "processors", "GPUs", "network cards", "GPU's slot")
    for one in report.devices[:MAX_NCCL_ROWS]:
        slot = "" if one.gpu_link_gbs is None else f"{one.gpu_link_gbs:g} GB/s"
        table.add_row(
            _file_name(one.file), str(one.num_processors), str(one.num_gpus), str(one.num_network_cards), slot
        )
    return table


def _planned(report: NcclReport) -> Table:
    table = report_table("planned in", "pattern", "channels", "inside a node", "between nodes")
    for one in report.planned[:MAX_NCCL_ROWS]:
        ways = [f"{by} {gbs:g} GB/s" for by, gbs in ((one.inside, one.inside_gbs), (one.between, one.between_gbs))]
        table.add_row(_file_name(one.file), one.pattern, str(one.channels), *ways)
    return table


def _file_name(file: str) -> str:
    return file.rpartition("/")[2]


@click.command("steps")
@click.argument("path", metavar="RUN")
@click.option("--last", type=click.IntRange(min=1), metavar="N", default=20, help="Show the last N steps.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, with all steps.")
@enters_only_run
def steps_command(path: str, last: int, as_json: bool) -> None:
    """Show how long the steps of a run took, from the records that its ranks wrote at every step.

    RUN is a run directory, or an output folder of torchtitan with its structured_logs.
    """
    from stepscope.workflow.run_records import read_steps

    print_report(read_steps(path), partial(_print_steps, last=last), as_json=as_json)


_STEP_FIGURES = ("loss", "grad_norm")
"""Figures with a column of their own where a step has them."""


def _print_steps(report: StepReport, last: int) -> None:
    """Print the summary of a run's steps, and the last of them, to stdout."""
    console = report_console()
    parts = [f"{counted(report.num_steps, 'step')} of {counted(len(report.ranks), 'rank')}"]
    times = report.step_ms
    if times.p50 is not None:
        parts.append(f"median {times.p50:,.1f} ms, p95 {times.p95:,.1f}, longest {times.max:,.1f}")
        parts.append(f"without the first and captured ones: {report.num_settled}")
    if report.data_wait is not None:
        parts.append(f"waiting for data {report.data_wait:.1%}")
    parts += [f"{name} {share:.1%}" for name, share in report.phases.items()]
    console.print("; ".join(parts))
    phases = sorted({name for row in report.steps for name in row.phases_ms})
    figures = [name for name in _STEP_FIGURES if any(name in row.figures for row in report.steps)]
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
            ", ".join([*(["captured"] if row.captured else []), *row.anomalies]),
        )
    console.print(table)
