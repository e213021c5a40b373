"""How does an analysis read in a terminal? Quality first, then the verdict, then where the time went."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepscope.cli.kernel_report import print_kernels
from stepscope.cli.terminal import report_console
from stepscope.core.analysis import Analysis, Ledger
from stepscope.core.causes import HEALTHY_CAUSES
from stepscope.core.counting import counted
from stepscope.core.headings import Heading
from stepscope.core.quality_lines import SHOWN_FROM, quality_lines
from stepscope.core.verdict_lines import headline, verdict_lines
from stepscope.core.words import cause_phrase, heading_phrase

MOST_RANKS = 16


def print_analysis(analysis: Analysis) -> None:
    """Print the report to stdout; plain text when it is no terminal."""
    console = report_console()
    console.print("trace quality")
    for name, line in quality_lines(analysis.trace_quality).items():
        console.print(f"  {name:<6}  {line}")
    console.print(headline(analysis.job))
    console.print()
    _print_verdict(console, analysis)
    console.print(_root_cause_table(analysis))
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
    first, *rest = verdict_lines(analysis.verdict)
    console.print(Text(first, style=style))
    for line in rest:
        console.print(line)


def _root_cause_table(analysis: Analysis) -> Table:
    table = Table("root cause", box=box.SIMPLE_HEAD, title="Why the time went there", title_justify="left")
    for name in ("share", "90 % interval", "ms a step"):
        table.add_column(name, justify="right")
    table.add_column("ranks")
    for row in analysis.root_causes:
        if row.fraction < SHOWN_FROM:
            continue
        interval = "" if row.interval is None else f"{row.interval[0]:.1%} .. {row.interval[1]:.1%}"
        milliseconds = "" if row.ms_per_step is None else f"{row.ms_per_step:,.1f}"
        ranks = "all" if len(row.ranks) == len(analysis.job.ranks) else ", ".join(map(str, sorted(row.ranks)[:8]))
        table.add_row(cause_phrase(row.cause), f"{row.fraction:.1%}", interval, milliseconds, ranks)
    return table


def _ledger_table(analysis: Analysis) -> Table:
    shown = [h for h in Heading if any(rank.ledger.get(h, 0.0) >= SHOWN_FROM for rank in analysis.ranks)]
    table = Table("rank", box=box.SIMPLE_HEAD, title="Where the time went, share of the window", title_justify="left")
    for heading in shown:
        table.add_column(heading_phrase(heading), justify="right")
    for rank in analysis.ranks[:MOST_RANKS]:
        table.add_row(str(rank.rank), *_cells(rank.ledger, shown))
    if len(analysis.ranks) > MOST_RANKS:
        table.add_row("...", *[""] * len(shown))
    table.add_row("job", *_cells(analysis.ledger, shown))
    return table


def _cells(ledger: Ledger, shown: list[Heading]) -> list[str]:
    shares = [ledger.get(heading, 0.0) for heading in shown]  # an analysis kept by another version may lack headings
    return [f"{share:.1%}" if share >= SHOWN_FROM else "" for share in shares]
