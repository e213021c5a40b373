"""An analysis of one run, or a comparison of two, in a terminal: the verdict first, then the tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepscope.cli.terminal.console import report_console, report_table
from stepscope.core.documents.analysis import Analysis, KernelTime, Ledger
from stepscope.core.documents.comparison import Change, ComparedSide, Comparison, Difference, GateOutcome
from stepscope.core.text import wording
from stepscope.core.text.numbers import counted, listed, short_kernel_name, significant
from stepscope.core.vocabulary import HEALTHY_CAUSES, TimeCategory

MAX_RANKS = 16


def print_analysis(analysis: Analysis) -> None:
    """Print an analysis to the terminal."""
    console = report_console()
    if analysis.ranks:
        console.print("trace quality")
        for name, line in wording.quality_lines(analysis.trace_quality).items():
            console.print(f"  {name:<6}  {line}")
    console.print(wording.headline(analysis.job))
    console.print()
    _print_verdict(console, analysis)
    if not analysis.ranks:  # without a trace there is nothing to divide the time by
        return
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


MAX_DIFFERENCES = 12
MAX_NAME_CHARS = 72
_CHANGE_STYLES = {Change.SLOWER: "bold yellow", Change.FASTER: "bold green"}
_OUTCOME_STYLES = {GateOutcome.FAILED: "bold red", GateOutcome.PASSED: "green"}


def print_comparison(comparison: Comparison) -> None:
    """Print a comparison of two runs to the terminal."""
    console = report_console()
    console.print(_compared_side("a", comparison.a))
    console.print(_compared_side("b", comparison.b))
    console.print()
    console.print(Text(comparison.summary, style=_CHANGE_STYLES.get(comparison.step_time.state, "bold")))
    for finding in comparison.findings:
        console.print(f"  {finding.message}")
    for name, difference, scale, unit in (
        ("MFU", comparison.mfu, 100.0, "%"),
        ("bus bandwidth", comparison.busbw_gbs, 1.0, "GB/s"),
    ):
        if difference.a is not None and difference.b is not None:
            figures = f"{difference.a * scale:,.1f} -> {difference.b * scale:,.1f} {unit}"
            console.print(f"  {name}: {figures} ({_change_word(difference) or 'no change seen'})")
    for memory in comparison.memory:
        console.print(f"  {_short_name(memory.name)}: {memory.a:,.0f} -> {memory.b:,.0f}")
    causes = [(wording.cause_phrase(row.cause), row.ms, listed(row.ranks_b)) for row in comparison.causes]
    console.print(_difference_table("root cause", causes, "ranks in b"))
    categories = [(wording.category_phrase(row.heading), row.ms, "") for row in comparison.headings]
    console.print(_difference_table("ledger heading", categories, ""))
    console.print(f"  {_how_tables_differ(comparison)}")
    kernels = [(k.name, k.ms, _calls(k.calls_a, k.calls_b)) for k in comparison.kernels if _matters(k.ms)]
    _print_some(console, "kernel", kernels)
    calls = [(k.name, k.ms, _calls(k.calls_a, k.calls_b)) for k in comparison.calls if _matters(k.ms)]
    _print_some(console, "operator and shapes", calls)
    collectives = [
        (f"{c.kind} {_collective_size(c.bytes)}, ranks {c.group}: {part}", ms, _calls(c.calls_a, c.calls_b))
        for c in comparison.collectives
        for part, ms in (("transfer", c.transfer_ms), ("wait", c.wait_ms))
        if _matters(ms)
    ]
    _print_some(console, "collective", collectives)
    for gate in comparison.gates:
        console.print(Text(f"gate {gate.summary}", style=_OUTCOME_STYLES.get(gate.outcome, "yellow")))


def _how_tables_differ(comparison: Comparison) -> str:
    """The meaning of a name in either table, and their sum."""
    a, b = (sum(getattr(row.ms, side) or 0.0 for row in comparison.causes) for side in ("a", "b"))
    unlike = "" if comparison.a.step_source == "captured" else "; the step above is that of unprofiled steps"
    return (
        f"Both tables add up to the mean captured step, {a:,.1f} -> {b:,.1f} ms{unlike}. A root cause holds the waits "
        "charged to it, of all ranks; a ledger heading is what the ranks did themselves, their waits under wait. "
        "A collective's wait below is all of it, hidden behind compute or not."
    )


def _compared_side(name: str, side: ComparedSide) -> str:
    runs = side.runs[0] if len(side.runs) == 1 else f"{len(side.runs)} runs"
    return (
        f"{name}: {side.name} ({runs}): median {side.median_ms:,.1f} ms, mean {side.mean_ms:,.1f}, p95 "
        f"{side.p95_ms:,.1f}, over {counted(sum(side.num_steps), f'{side.step_source} step')}"
    )


def _print_some(console: Console, title: str, rows: Sequence[tuple[str, Difference, str]]) -> None:
    if rows:
        console.print(_difference_table(title, rows[:MAX_DIFFERENCES], "calls a step"))
    if len(rows) > MAX_DIFFERENCES:
        console.print(f"  {len(rows) - MAX_DIFFERENCES} more in the output of --json")


def _difference_table(title: str, rows: Iterable[tuple[str, Difference, str]], last: str) -> Table:
    table = report_table(title, ">a, ms", ">b, ms", ">change", ">95 % interval", "", last)
    for name, difference, more in rows:
        low, high = difference.interval or (0.0, 0.0)
        table.add_row(
            _short_name(name),
            f"{difference.a or 0.0:,.2f}",
            f"{difference.b or 0.0:,.2f}",
            f"{difference.change or 0.0:+,.2f}",
            f"{low:+,.2f} .. {high:+,.2f}",
            Text(_change_word(difference), style=_CHANGE_STYLES.get(difference.state, "")),
            more,
        )
    return table


def _matters(difference: Difference) -> bool:
    return difference.state not in (Change.NOT_SEEN, Change.UNKNOWN)


def _change_word(difference: Difference) -> str:
    return "" if difference.state is Change.NOT_SEEN else difference.state.value


def _calls(a: float, b: float) -> str:
    before, after = significant(a, 4), significant(b, 4)
    return before if abs(a - b) < 0.005 * max(a, b) else f"{before} -> {after}"


def _collective_size(num_bytes: int | None) -> str:
    return "of unknown size" if num_bytes is None else f"{num_bytes / 2**20:,.2f} MiB"


def _short_name(name: str) -> str:
    printable = "".join(c if c.isprintable() else "\ufffd" for c in name)
    return printable if len(printable) <= MAX_NAME_CHARS else f"{printable[: MAX_NAME_CHARS - 3]}..."
