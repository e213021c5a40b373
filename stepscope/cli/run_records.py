"""Verbs that read what a run recorded beside its traces: hang, memory, steps."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.cli.options import enters_only_run, fetches_records, json_option
from stepscope.cli.terminal.answers import print_document, print_report
from stepscope.cli.terminal.console import print_hanging, report_console, report_table
from stepscope.core.documents.hang import HangReport, WaitingGroup, group_words
from stepscope.core.documents.memory import Compared, JobKind, MemoryComparison, MemoryReport, own_call
from stepscope.core.documents.run_directory import DATA_WAIT, LongWait, StepReport, StepRow
from stepscope.core.errors import printable
from stepscope.core.text.numbers import counted, form, ranks_words, size
from stepscope.core.vocabulary import Cause

if TYPE_CHECKING:
    from rich.table import Table


@click.command("hang")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@json_option
@fetches_records
@enters_only_run
def hang_command(paths: tuple[str, ...], as_json: bool) -> None:
    """Find the ranks that hold a job up, from the dumps of torch's flight recorder.

    PATH is a dump (pickle or JSON, NCCL or gloo, any name that ends with the rank), a folder of them, or a run
    directory. Nothing in a dump is executed.
    """
    from stepscope.workflow.run_records import read_hang

    print_report(read_hang(paths), _print_hang, as_json=as_json)


_HEADS = {Cause.HANG: "HANG", "none": "NO HANG"}
"""How the answer begins, by its cause."""


def _print_hang(report: HangReport) -> None:
    verdict = report.verdict
    kind = f"{verdict.kind}: " if verdict.kind else ""
    lines = [f"{_HEADS.get(verdict.cause, 'UNKNOWN')}  {kind}{verdict.summary}"]
    lines += [f"  - {ranks_words(one.ranks)}: {one.message}" for one in verdict.evidence]
    lines += [f"  {'Fix' if place == 0 else '   '}  {action}" for place, action in enumerate(verdict.actions)]
    missing = f"; no dump of {ranks_words(report.missing_ranks)}" if report.missing_ranks else ""
    lines.append(f"Confidence {verdict.confidence:.0%}: {counted(len(report.ranks), 'dump')}{missing}")
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
@click.option(
    "--compare", "is_comparison", is_flag=True, help="Compare two PATHs: two times of a process or two ranks."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document; a list of them for several snapshots.")
@fetches_records
@enters_only_run
def memory_command(paths: tuple[str, ...], is_comparison: bool, as_json: bool) -> None:
    """Explain what held the GPU's memory at its peak, what grows, and why it ran out.

    PATH is a snapshot of torch.cuda.memory._dump_snapshot(), also gzipped and of any size, a folder of them, or a run
    directory. Nothing in a snapshot is executed.
    """
    if is_comparison:
        _compare_memory(paths, as_json=as_json)
        return
    from stepscope.workflow.memory import read_memory

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


def _compare_memory(paths: tuple[str, ...], *, as_json: bool) -> None:
    from stepscope.workflow.memory import read_memory_comparison

    if len(paths) != 2:
        raise click.UsageError(f"--compare takes two snapshots, not {len(paths)}")
    comparison = read_memory_comparison(*paths)
    print_report(comparison, _print_memory_comparison, as_json=as_json)


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
    for pool in report.private_pools[:MAX_HOLDERS]:
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
    for holder in report.at_peak[:MAX_HOLDERS]:
        place = printable(own_call(holder.stack))
        table.add_row(
            holder.category.value, size(holder.bytes), f"{holder.bytes / peak:.1%}", f"{holder.count:,}", place
        )
    return table


def _print_memory_comparison(comparison: MemoryComparison) -> None:
    """Print the comparison of two memory snapshots to stdout."""
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
    for holder in comparison.holders[:MAX_HOLDERS]:
        holders.add_row(holder.category.value, *_compared(holder.end), *_compared(holder.peak), printable(holder.place))
    console.print(holders)


def _compared(compared: Compared) -> tuple[str, str, str]:
    sign = "+" if compared.change > 0 else "-"
    change = f"{sign}{size(abs(compared.change))}" if compared.change else "0 B"
    return size(compared.first), size(compared.second), change


@click.command("steps")
@click.argument("path", metavar="RUN")
@click.option("--last", type=click.IntRange(min=1), metavar="N", default=20, help="Show the last N steps.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, with all steps.")
@fetches_records
@enters_only_run
def steps_command(path: str, last: int, as_json: bool) -> None:
    """Show how long the steps of a run took, and which ranks the others waited for.

    RUN is a run directory, an output folder of torchtitan with its structured_logs, or the console log of
    Megatron-LM, Megatron-DeepSpeed, torchtitan, Primus or the Hugging Face Trainer, also compressed, with colours and
    with prefixes of ranks and hosts.
    """
    from stepscope.workflow.run_records import read_steps

    print_report(read_steps(path), partial(_print_steps, path=path, last=last), as_json=as_json)


_STEP_FIGURES = ("loss", "grad_norm")
"""Figures with a column of their own where a step has them."""
_MAX_PHASES = 6
_MAX_WAITS = 8


def _print_steps(report: StepReport, *, path: str, last: int) -> None:
    """Print the verdict kept in a run, the summary of its steps, and the last of them, to stdout."""
    from stepscope.cli.terminal.analysis import print_verdict_head
    from stepscope.store.runs import find_analysis

    console = report_console()
    if (analysis := find_analysis(Path(path))) is not None:
        print_verdict_head(console, analysis)
    print_hanging(console, _steps_headline(report))
    for wait in _longest_waits(report.long_waits):
        print_hanging(console, f"  - {_wait_words(wait)}")
    if len(report.long_waits) > _MAX_WAITS:
        console.print(f"  - {len(report.long_waits) - _MAX_WAITS} more long waits are in --json")
    phases = sorted(sorted(report.phases, key=lambda name: -report.phases[name])[:_MAX_PHASES])
    figures = [name for name in _STEP_FIGURES if any(name in row.figures for row in report.steps)]
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
            *([_rank_or_empty(row.slowest_rank)] if has_slowest else []),
            *([f"{row.data_wait_ms:,.1f}"] if has_waits else []),
            *([_rank_or_empty(row.data_wait_rank)] if has_waiting else []),
            *(f"{row.phases_ms[name]:,.1f}" if name in row.phases_ms else "" for name in phases),
            *(f"{row.figures[name]:.4g}" if name in row.figures else "" for name in figures),
            _step_remark(row, waits.get(row.index)),
        )
    console.print(table)


def _rank_or_empty(rank: int | None) -> str:
    return "" if rank is None else str(rank)


def _longest_waits(waits: list[LongWait]) -> list[LongWait]:
    """The longest waits in order of their steps."""
    return sorted(sorted(waits, key=lambda wait: -wait.ms)[:_MAX_WAITS], key=lambda wait: wait.step)


def _wait_words(wait: LongWait) -> str:
    who = ranks_words(wait.ranks) if wait.ranks else "a rank"
    what = "waited for data" if wait.name == DATA_WAIT else f"was in {printable(wait.name)}"
    return (
        f"step {wait.step}: {who} {what} for {wait.ms:,.1f} ms (usually {wait.usual_ms:,.1f}); "
        f"the step took {wait.step_ms:,.1f} ms (usually {wait.usual_step_ms:,.1f})"
    )


def _steps_headline(report: StepReport) -> str:
    """The steps in a line; durations and shares are of the settled ones."""
    counts = counted(report.num_steps, "step")
    where = (
        f"{counts} of {counted(len(report.ranks), 'rank')}" if report.ranks else f"{counts} in a log of {report.source}"
    )
    times = report.step_ms
    parts = []
    if times.p50 is not None:
        parts.append(f"median {times.p50:,.1f} ms, p95 {times.p95:,.1f} ms, longest {times.max:,.1f} ms")
    if report.data_wait is not None:
        parts.append(f"waiting for data {report.data_wait:.1%}{_longest_share(report)}")
    parts += [f"{name} {share:.1%}" for name, share in _largest_phases(report.phases)]
    if not parts:
        return where
    settled = (
        f"; of the {report.num_settled} without the first and profiled ones"
        if report.num_settled < report.num_steps
        else ""
    )
    return f"{where}{settled}: {'; '.join(parts)}"


def _longest_share(report: StepReport) -> str:
    """The share by the longest wait of each step, where it differs from the mean over the ranks."""
    longest, mean = report.longest_data_wait, report.data_wait
    differs = longest is not None and mean is not None and longest - mean >= _MIN_WAIT_DIFFERENCE
    return f" ({longest:.1%} by the rank that waits longest at each step)" if differs else ""


_MIN_WAIT_DIFFERENCE = 0.01


def _largest_phases(phases: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(sorted(phases.items(), key=lambda entry: -entry[1])[:_MAX_PHASES])


def _step_remark(row: StepRow, wait: LongWait | None) -> str:
    long = [] if wait is None else [f"long wait: {'data' if wait.name == DATA_WAIT else printable(wait.name)}"]
    return ", ".join([*(["profiled"] if row.captured else []), *row.anomalies, *long])
