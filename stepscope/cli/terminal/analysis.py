"""An analysis of one run, or a comparison of two, in a terminal: the verdict first, then the tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepscope.cli.terminal.console import print_hanging, report_console, report_table
from stepscope.core.documents.analysis import Analysis, KernelTime, Pipeline
from stepscope.core.documents.comparison import Change, ComparedSide, Comparison, Difference, GateOutcome
from stepscope.core.text import wording
from stepscope.core.text.numbers import counted, listed, short_kernel_name, significant
from stepscope.core.text.verdict import (
    BOTTLENECK,
    NO_BOTTLENECK,
    UNKNOWN,
    breakdown,
    goodput_line,
    headline,
    time_name,
    verdict_text,
)
from stepscope.core.vocabulary import TimeCategory

MAX_RANKS = 16


def print_analysis(analysis: Analysis) -> None:
    """Print an analysis to the terminal: the verdict, the time breakdown, ranks, kernels, trace quality."""
    console = report_console()
    print_hanging(console, headline(analysis))
    console.print()
    print_verdict(console, analysis)
    console.print()
    console.print(_breakdown_table(analysis))
    if analysis.job_time is not None and (goodput := goodput_line(analysis.job_time)) is not None:
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
    for name, line in wording.quality_lines(analysis.trace_quality).items():
        print_hanging(console, f"  {name:<8}{line}", indent=10)


def print_verdict(console: Console, analysis: Analysis) -> None:
    """Print the verdict of an analysis to the terminal."""
    text = verdict_text(analysis)
    first, *rest = text.lines()
    print_hanging(console, first, style=_LABEL_STYLES[text.label])
    for line in rest:
        print_hanging(console, line)


_LABEL_STYLES = {BOTTLENECK: "bold yellow", NO_BOTTLENECK: "bold green", UNKNOWN: "bold yellow"}


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
    table.columns[0].no_wrap = True
    for kernel in kernels:
        table.add_row(*(_kernel_cells(kernel, windows) if is_wide else _narrow_cells(kernel, windows)))
    console.print(table)
    for finding in analysis.roofline.findings[:MAX_FINDINGS]:
        code = finding.code.replace("_", " ")
        print_hanging(console, f"  - {code}, {finding.fraction:.1%} of the profiled time: {finding.message}")
        print_hanging(console, f"    > {finding.advice}")


_WIDE = 130
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
    console.print(_difference_table("category", categories, ""))
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
        f"Both tables add up to the mean profiled step, {a:,.1f} -> {b:,.1f} ms{unlike}. A root cause holds the waits "
        "attributed to it, of all ranks; a category is what the ranks did themselves, their waits as waiting. "
        "A collective's wait below is all of it, hidden behind compute or not."
    )


def _compared_side(name: str, side: ComparedSide) -> str:
    source = "profiled" if side.step_source == "captured" else side.step_source
    runs = side.runs[0] if len(side.runs) == 1 else f"{len(side.runs)} runs"
    return (
        f"{name}: {side.name} ({runs}): median {side.median_ms:,.1f} ms, mean {side.mean_ms:,.1f}, p95 "
        f"{side.p95_ms:,.1f}, over {counted(sum(side.num_steps), f'{source} step')}"
    )


def _print_some(console: Console, title: str, rows: Sequence[tuple[str, Difference, str]]) -> None:
    if rows:
        console.print(_difference_table(title, rows[:MAX_DIFFERENCES], "calls a step"))
    if len(rows) > MAX_DIFFERENCES:
        console.print(f"  {len(rows) - MAX_DIFFERENCES} more in the output of --json")


def _difference_table(title: str, rows: Iterable[tuple[str, Difference, str]], last: str) -> Table:
    table = report_table(title, ">a, ms", ">b, ms", ">change", ">95% interval", "", last)
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
