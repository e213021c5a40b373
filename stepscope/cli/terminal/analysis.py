"""An analysis of one run in a terminal: the verdict first, then the tables."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from stepscope.cli.terminal.console import fit_names, print_hanging, report_console, report_table
from stepscope.core.documents.analysis import Analysis, KernelTime, Pipeline
from stepscope.core.text import wording
from stepscope.core.text.evidence import unknown_kernels_words
from stepscope.core.text.job_time import breakdown, goodput_line, headline, time_name
from stepscope.core.text.numbers import counted, listed, short_kernel_name
from stepscope.core.text.trace_quality import quality_lines
from stepscope.core.text.verdict import BOTTLENECK, ENDED, NO_BOTTLENECK, UNKNOWN, verdict_text
from stepscope.core.vocabulary import TimeCategory

MAX_RANKS = 16


def print_analysis(analysis: Analysis) -> None:
    """Print an analysis to the terminal: the verdict, the time breakdown, ranks, kernels, trace quality."""
    console = report_console()
    print_hanging(console, headline(analysis))
    console.print()
    print_verdict(console, analysis)
    console.print()
    if breakdown(analysis):
        console.print(_breakdown_table(analysis))
    if (goodput := goodput_line(analysis)) is not None:
        print_hanging(console, goodput)
        console.print()
    if len(analysis.ranks) > 1:
        console.print(_rank_table(analysis, console.width))
    print_kernels(console, analysis)
    if analysis.pipeline is not None:
        print_hanging(console, _pipeline(analysis.pipeline))
    if not analysis.ranks:  # no trace
        return
    console.print("Trace quality")
    for name, line in quality_lines(analysis.trace_quality).items():
        print_hanging(console, f"  {name:<8}{line}", indent=10)


def print_verdict(console: Console, analysis: Analysis) -> None:
    """Print the verdict of an analysis to the terminal."""
    text = verdict_text(analysis)
    first, *rest = text.lines()
    print_hanging(console, first, style=_LABEL_STYLES[text.label])
    for line in rest:
        print_hanging(console, line)


def print_verdict_head(console: Console, analysis: Analysis) -> None:
    """Print the first line of a verdict to the terminal, and its fix."""
    text = verdict_text(analysis)
    print_hanging(console, text.lines()[0], style=_LABEL_STYLES[text.label])
    for name, words in text.remedies[:1]:
        print_hanging(console, f"  {name:<10}{words}")
    console.print()


_LABEL_STYLES = {BOTTLENECK: "bold yellow", NO_BOTTLENECK: "bold green", UNKNOWN: "bold yellow"} | dict.fromkeys(
    ENDED.values(), "bold red"
)


def _breakdown_table(analysis: Analysis) -> Table:
    rows = breakdown(analysis)
    with_ranks = len(analysis.job.ranks) > 1 and any(row.ranks for row in rows)
    columns = ("category", ">share", ">ms per step", *(["ranks"] if with_ranks else []))
    name = time_name(analysis)
    table = report_table(*columns, title=f"{name[:1].upper()}{name[1:]} by category")
    for row in rows:
        ms = "" if row.ms is None else f"{row.ms:,.1f}"
        is_all = len(row.ranks) == len(analysis.job.ranks)
        ranks = "all" if is_all else listed(sorted(row.ranks))
        table.add_row(row.title, f"{row.share:.1%}", ms, *([ranks] if with_ranks else []))
    return table


_RANK_COLUMN, _CATEGORY_COLUMN = 9, 26
"""Characters of the columns of the table of ranks."""


def _rank_table(analysis: Analysis, width: int) -> Table:
    """Time breakdown of the profiled steps of each rank: categories by rank."""
    most = max(min(MAX_RANKS, (width - _CATEGORY_COLUMN) // _RANK_COLUMN - 1), 1)
    ranks, steps = analysis.ranks[:most], counted(analysis.job.num_steps, "profiled step")
    fewer = f" (the first {most} of {len(analysis.ranks)})" if len(analysis.ranks) > most else ""
    columns = ("category", *(f">rank {rank.rank}" for rank in ranks), ">all")
    table = report_table(*columns, title=f"Time of each rank{fewer}, of the {steps}")
    for category in TimeCategory:  # an analysis of another version may lack some
        shares = [rank.ledger.get(category, 0.0) for rank in ranks] + [analysis.ledger.get(category, 0.0)]
        if any(share >= wording.SHOWN_FROM for share in shares):
            cells = (f"{share:.1%}" if share >= wording.SHOWN_FROM else "" for share in shares)
            table.add_row(wording.category_words(category, on_cpu=wording.is_on_cpu(analysis.job)), *cells)
    return table


def _pipeline(pipeline: Pipeline) -> str:
    stages, micro_batches = counted(pipeline.stages, "stage"), counted(pipeline.micro_batches, "micro-batch")
    return (
        f"Pipeline: {stages}, {micro_batches}, {pipeline.schedule}; without compute {pipeline.measured:.1%} of the "
        f"pipelined span = schedule {pipeline.structural:.1%} + uneven stages {pipeline.imbalance:.1%} + rest "
        f"{pipeline.variance:.1%} (textbook {pipeline.textbook:.1%})"
    )


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
    is_wide = console.width >= _WIDE
    figures = (">share", ">calls", ">mean us", ">% of roofline", ">occupancy")
    columns = ("kernel", "operator", *figures, "limited by", "findings") if is_wide else _NARROW_COLUMNS
    steps = counted(analysis.job.num_steps, "profiled step")
    table = report_table(*columns, title=f"Kernels with most time, of the {steps}")
    for kernel in kernels:
        table.add_row(*(_kernel_cells(kernel, windows) if is_wide else _narrow_cells(kernel, windows)))
    console.print(fit_names(table, console.width))
    for finding in analysis.roofline.findings[:MAX_FINDINGS]:
        code = finding.code.replace("_", " ")
        print_hanging(console, f"  - {code}, {finding.fraction:.1%} of the profiled time: {finding.message}")
        print_hanging(console, f"    > {finding.advice}")
    if unknown := unknown_kernels_words(analysis.roofline.unknown):
        print_hanging(console, f"  - {unknown}")


_WIDE = 150
"""Columns of a terminal from which the table of kernels has all of its columns."""
_NARROW_COLUMNS = ("kernel", ">share", ">mean us", ">% of roofline", "limited by")


def _kernel_cells(kernel: KernelTime, windows: float) -> tuple[str, ...]:
    occupancy = " ".join(
        part for part in (_percent(kernel.occupancy), (kernel.limiter or "").replace("_", " ")) if part
    )
    name, share, mean_us, roofline, limit = _narrow_cells(kernel, windows)
    findings = ", ".join(code.replace("_", " ") for code in kernel.findings)
    operator, calls = kernel.operator or "", f"{kernel.count:,}"
    return (name, operator, share, calls, mean_us, roofline, occupancy, limit, findings)


def _narrow_cells(kernel: KernelTime, windows: float) -> tuple[str, ...]:
    return (
        short_kernel_name(kernel.name),
        f"{kernel.ms / windows:.1%}",
        "" if kernel.mean_us is None else f"{kernel.mean_us:,.1f}",
        _percent(kernel.roof_share),
        wording.category_phrase(kernel.limit),
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
