"""An analysis of one run in a terminal: the verdict first, then the tables."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepscope.cli.terminal.console import report_console, report_table
from stepscope.core.documents.analysis import Analysis, KernelTime, Ledger
from stepscope.core.text import wording
from stepscope.core.text.numbers import counted, short_kernel_name
from stepscope.core.vocabulary import HEALTHY_CAUSES, TimeCategory

MAX_RANKS = 16


def print_analysis(analysis: Analysis) -> None:
    """Print an analysis to the terminal."""
    console = report_console()
    console.print("trace quality")
    for name, line in wording.quality_lines(analysis.trace_quality).items():
        console.print(f"  {name:<6}  {line}")
    console.print(wording.headline(analysis.job))
    console.print()
    _print_verdict(console, analysis)
    columns = ("root cause", ">share", ">90 % interval", ">ms a step", "ranks")
    table = report_table(*columns, title="Why the time went there")
    for row in analysis.root_causes:
        if row.fraction < wording.SHOWN_FROM:
            continue
        interval = "" if row.interval is None else f"{row.interval[0]:.1%} .. {row.interval[1]:.1%}"
        milliseconds = "" if row.ms_per_step is None else f"{row.ms_per_step:,.1f}"
        ranks = "all" if len(row.ranks) == len(analysis.job.ranks) else ", ".join(map(str, sorted(row.ranks)[:8]))
        table.add_row(
            wording.cause_of_job(row.cause, analysis.job), f"{row.fraction:.1%}", interval, milliseconds, ranks
        )
    console.print(table)
    console.print(_ledger_table(analysis))
    print_kernels(console, analysis)
    if analysis.pipeline is not None:
        p = analysis.pipeline
        console.print(
            f"pipeline: {counted(p.stages, 'stage')}, {counted(p.micro_batches, 'micro-batch')}, "
            f"{p.schedule}; without compute "
            f"{p.measured:.1%} = schedule {p.structural:.1%} + uneven stages {p.imbalance:.1%} + rest {p.variance:.1%}"
            f" (textbook {p.textbook:.1%})"
        )


def _print_verdict(console: Console, analysis: Analysis) -> None:
    style = "bold green" if analysis.verdict.cause in HEALTHY_CAUSES else "bold yellow"
    first, *rest = wording.verdict_lines(analysis.verdict, analysis.job)
    console.print(Text(first, style=style))
    for line in rest:
        console.print(line)


def _ledger_table(analysis: Analysis) -> Table:
    shown = [c for c in TimeCategory if any(rank.ledger.get(c, 0.0) >= wording.SHOWN_FROM for rank in analysis.ranks)]
    columns = [f">{wording.category_phrase(category)}" for category in shown]
    table = report_table("rank", *columns, title="Where the time went, share of the window")
    for rank in analysis.ranks[:MAX_RANKS]:
        table.add_row(str(rank.rank), *_share_cells(rank.ledger, shown))
    if len(analysis.ranks) > MAX_RANKS:
        table.add_row("...", *[""] * len(shown))
    table.add_row("job", *_share_cells(analysis.ledger, shown))
    return table


def _share_cells(ledger: Ledger, shown: list[TimeCategory]) -> list[str]:
    shares = [ledger.get(category, 0.0) for category in shown]  # an analysis of another version may lack some
    return [f"{share:.1%}" if share >= wording.SHOWN_FROM else "" for share in shares]


MAX_KERNELS = 6
MAX_FINDINGS = 4
MIN_KERNEL_SHARE = 0.01
"""Of the windows; kernels with less are left to --json."""


def print_kernels(console: Console, analysis: Analysis) -> None:
    """Print the table of kernels and its findings to the terminal; nothing where none takes 1 % of the time."""
    windows = sum(rank.window_ms for rank in analysis.ranks)
    kernels = [k for k in analysis.roofline.kernels if windows and k.ms / windows >= MIN_KERNEL_SHARE][:MAX_KERNELS]
    if not kernels:
        return
    figures = (">share", ">calls", ">mean us", ">of its roof", ">occupancy")
    columns = ("kernel", "operator", *figures, "limited by", "findings")
    table = report_table(*columns, title="Kernels with most time")
    for kernel in kernels:
        table.add_row(*_kernel_cells(kernel, windows))
    console.print(table)
    for finding in analysis.roofline.findings[:MAX_FINDINGS]:
        console.print(f"  - {finding.code.replace('_', ' ')}, {finding.fraction:.1%} of the time: {finding.message}")
        console.print(f"    > {finding.advice}")


def _kernel_cells(kernel: KernelTime, windows: float) -> tuple[str, ...]:
    occupancy = " ".join(
        part for part in (_percent(kernel.occupancy), (kernel.limiter or "").replace("_", " ")) if part
    )
    return (
        short_kernel_name(kernel.name),
        kernel.operator or "",
        f"{kernel.ms / windows:.1%}",
        f"{kernel.count:,}",
        "" if kernel.mean_us is None else f"{kernel.mean_us:,.1f}",
        _percent(kernel.roof_share),
        occupancy,
        wording.category_phrase(kernel.limit),
        ", ".join(code.replace("_", " ") for code in kernel.findings),
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
