"""A comparison of two runs in a terminal: the step time first, then the tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepscope.cli.terminal.console import fit_names, print_hanging, report_console, report_table
from stepscope.core.documents.comparison import Change, ComparedSide, Comparison, Difference, Gate, GateOutcome
from stepscope.core.text import wording
from stepscope.core.text.comparison import recorded_title
from stepscope.core.text.numbers import counted, form, listed, plain_size, short_kernel_name, significant
from stepscope.core.vocabulary import Notice

MAX_DIFFERENCES = 12
MAX_SETTINGS = 8
MAX_NAME_CHARS = 72
_CHANGE_STYLES = {Change.SLOWER: "bold yellow", Change.FASTER: "bold green"}
_OUTCOME_STYLES = {GateOutcome.FAILED: "bold red", GateOutcome.PASSED: "green"}


def print_comparison(comparison: Comparison) -> None:
    """Print a comparison of two runs to the terminal."""
    console = report_console()
    print_hanging(console, _compared_side("a", comparison.a))
    print_hanging(console, _compared_side("b", comparison.b))
    console.print()
    print_hanging(console, comparison.summary, style=_CHANGE_STYLES.get(comparison.step_time.state, "bold"))
    for finding in comparison.findings:
        print_hanging(console, f"  {finding.message}")
    for name, difference, scale, unit in (
        ("MFU", comparison.mfu, 100.0, "%"),
        ("bus bandwidth", comparison.busbw_gbs, 1.0, " GB/s"),
    ):
        if difference.a is not None and difference.b is not None:
            figures = f"{difference.a * scale:,.1f}{unit} -> {difference.b * scale:,.1f}{unit}"
            print_hanging(console, f"  {name}: {figures} ({_change_word(difference) or 'no change seen'})")
    for memory in comparison.memory:
        print_hanging(
            console, f"  {_short_name(memory.name)}: {_bytes(memory.name, memory.a)} -> {_bytes(memory.name, memory.b)}"
        )
    _print_records(console, comparison)
    if not any(row.ms.a or row.ms.b for row in comparison.causes):
        _print_gates(console, comparison)
        return
    on_cpu = comparison.device_kind == "cpu"
    causes = [
        (wording.cause_phrase(row.cause, on_cpu=on_cpu), row.ms, listed(row.ranks_b)) for row in comparison.causes
    ]
    _print_table(console, _difference_table("root cause", causes, "ranks in b"))
    categories = [(wording.category_phrase(row.heading, on_cpu=on_cpu), row.ms, "") for row in comparison.headings]
    _print_table(console, _difference_table("category", categories, ""))
    print_hanging(console, f"  {_how_tables_differ(comparison)}", indent=2)
    kernels = [
        (short_kernel_name(k.name), k.ms, _calls(k.calls_a, k.calls_b)) for k in comparison.kernels if _matters(k.ms)
    ]
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
    _print_gates(console, comparison)


def _print_gates(console: Console, comparison: Comparison) -> None:
    for gate in comparison.gates:
        console.print(Text(f"gate {gate.summary}", style=_OUTCOME_STYLES.get(gate.outcome, "yellow")))


def _print_records(console: Console, comparison: Comparison) -> None:
    """Parts of the mean step by the records of all steps, and the settings that differ."""
    if comparison.recorded:
        parts = [(recorded_title(row.name), row.ms, "") for row in comparison.recorded]
        _print_table(console, _difference_table("recorded in all steps", parts, ""))
    if comparison.settings:
        table = report_table("setting that differs", "a", "b", "acts on what changed by")
        for row in comparison.settings[:MAX_SETTINGS]:
            by = f"{row.explains_ms:,.1f} ms" if row.explains_ms > 0 else ""
            table.add_row(row.name, _short_name(row.a or "unset"), _short_name(row.b or "unset"), by)
        _print_table(console, table)
    if len(comparison.settings) > MAX_SETTINGS:
        console.print(f"  {len(comparison.settings) - MAX_SETTINGS} more settings in the output of --json")


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
        f"{name}: {side.name} ({runs}): median {side.median_ms:,.1f} ms, mean {side.mean_ms:,.1f} ms, p95 "
        f"{side.p95_ms:,.1f} ms, over {counted(sum(side.num_steps), f'{source} step')}"
    )


def _print_some(console: Console, title: str, rows: Sequence[tuple[str, Difference, str]]) -> None:
    if rows:
        _print_table(console, _difference_table(title, rows[:MAX_DIFFERENCES], "calls per step"))
    if len(rows) > MAX_DIFFERENCES:
        console.print(f"  {len(rows) - MAX_DIFFERENCES} more in the output of --json")


def _print_table(console: Console, table: Table) -> None:
    console.print(fit_names(table, console.width))


def _difference_table(title: str, rows: Sequence[tuple[str, Difference, str]], last: str) -> Table:
    """Table of differences; its last column only where it tells rows apart."""
    with_last = len({more for _, _, more in rows}) > 1
    table = report_table(title, ">a, ms", ">b, ms", ">change", ">95% interval", "", *([last] if with_last else []))
    for name, difference, more in rows:
        low, high = difference.interval or (0.0, 0.0)
        table.add_row(
            _short_name(name),
            f"{difference.a or 0.0:,.2f}",
            f"{difference.b or 0.0:,.2f}",
            f"{difference.change or 0.0:+,.2f}",
            f"{low:+,.2f} .. {high:+,.2f}",
            Text(_change_word(difference), style=_CHANGE_STYLES.get(difference.state, "")),
            *([more] if with_last else []),
        )
    return table


def _matters(difference: Difference) -> bool:
    return difference.state not in (Change.NOT_SEEN, Change.UNKNOWN)


def _change_word(difference: Difference) -> str:
    return "" if difference.state is Change.NOT_SEEN else difference.state.value


def _calls(a: float, b: float) -> str:
    before, after = significant(a, 4), significant(b, 4)
    return before if abs(a - b) < 0.005 * max(a, b) else f"{before} -> {after}"


def _bytes(name: str, value: float) -> str:
    """A memory figure in GiB or less where its name says that it is of bytes."""
    return plain_size(round(value)) if name.endswith("_bytes") else f"{value:,.0f}"


def _collective_size(num_bytes: int | None) -> str:
    return "of unknown size" if num_bytes is None else f"{num_bytes / 2**20:,.2f} MiB"


def _short_name(name: str) -> str:
    printable = "".join(c if c.isprintable() else "\ufffd" for c in name)
    return printable if len(printable) <= MAX_NAME_CHARS else f"{printable[: MAX_NAME_CHARS - 3]}..."


def undecided_notice(gates: Sequence[Gate], inconclusive: str) -> Notice:
    """Notice of gates that the runs cannot decide, and of what they do then."""
    names = listed([gate.text for gate in gates])
    what = f"{counted(len(gates), 'gate')} {form(len(gates), 'is', 'are')} not decided by these runs ({names})"
    passes = inconclusive == "pass"
    does = (
        f"{form(len(gates), 'passes', 'pass')}: --inconclusive fail stops"
        if passes
        else form(len(gates), "fails", "fail")
    )
    return Notice("gates_not_decided", f"{what} and {does}{' on them' if passes else ''}")
