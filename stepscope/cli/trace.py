"""`stepscope trace`: the contents of trace files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli.groups import CommandGroup
from stepscope.cli.options import enters_only_run, json_option, print_document, print_warnings
from stepscope.core.text.numbers import counted, form, number_runs
from stepscope.core.text.wording import place_words

if TYPE_CHECKING:
    from stepscope.workflow.trace_info import GroupInfo, Problems, TraceFileInfo, TraceInfo

MAX_STEPS_SHOWN = 8
MAX_GROUPS_SHOWN = 12


@click.group("trace", cls=CommandGroup)
def command() -> None:
    """Inspect trace files."""


@command.command("info")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@json_option
@enters_only_run
def info(files: tuple[str, ...], as_json: bool) -> None:
    """Show what a trace holds: rank, steps, versions, GPU, events, and what was damaged and repaired.

    FILE is a trace file, a folder or archive of traces, a run directory, or any fsspec URL (s3://...).
    """
    from stepscope.cli.terminal.progress import file_progress
    from stepscope.workflow.trace_info import read_trace_info

    with file_progress("reading") as on_progress:
        trace_info = read_trace_info(files, on_progress=on_progress)
    if as_json:
        print_document(trace_info)
    else:
        _print(trace_info)
    print_warnings(trace_info.warnings)


def _print(trace_info: TraceInfo) -> None:
    """Print a table for each file on a terminal, else `path: name: value` lines, which grep and awk can take apart."""
    import sys

    if not sys.stdout.isatty():
        for file in trace_info.files:
            for name, value in _facts(file):
                click.echo(f"{_title(file)}: {name}: {value}")
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)  # rich itself respects NO_COLOR
    for file in trace_info.files:
        table = Table("", "", box=box.SIMPLE, show_header=False, title=_title(file), title_justify="left")
        for name, value in _facts(file):
            table.add_row(name, value)
        console.print(table)


def _title(file: TraceFileInfo) -> str:
    """The path, and which of the ranks in it, where there are several."""
    return f"{file.path} ({file.part})" if file.part else file.path


def _facts(file: TraceFileInfo) -> list[tuple[str, str]]:
    counts = ", ".join(f"{name} {count:,}" for name, count in file.num_by_category.items())
    recorded = [name for name, is_on in (("shapes", file.with_shapes), ("stacks", file.with_stacks)) if is_on]
    facts = [
        ("rank", _rank(file)),
        ("host", file.host),
        ("GPU", file.gpu),
        ("accelerator", f"{file.accelerator}: not analyzed" if file.accelerator else ""),
        ("versions", ", ".join(f"{name} {version}" for name, version in file.versions.items())),
        ("span", f"{file.span_ms:,.3f} ms"),
        ("steps", _steps(file.steps)),
        ("entries", f"{file.num_events:,}"),
        ("events", counts),
        ("recorded with", ", ".join(recorded)),
        *((f"group {group.name or '?'}", _group(group)) for group in file.groups[:MAX_GROUPS_SHOWN]),
        ("further groups", f"{max(0, len(file.groups) - MAX_GROUPS_SHOWN) or ''}"),
        ("size", f"{file.file_bytes:,} bytes, {file.text_bytes:,} of text"),
        ("problems", _problems(file.problems)),
    ]
    return [(name, value) for name, value in facts if value]


def _rank(file: TraceFileInfo) -> str:
    rank = "unknown" if file.rank is None else str(file.rank)
    if file.rank is None and file.place:
        rank += f" ({place_words(file.place)})"
    return rank if file.world_size is None else f"{rank} of {file.world_size} ({file.backend or 'backend unknown'})"


def _group(group: GroupInfo) -> str:
    members = (
        "members unknown"
        if group.ranks is None
        else f"{form(len(group.ranks), 'rank')} {number_runs(group.ranks, dash='-')}"
    )
    return " ".join(
        part for part in (group.description, f"({members}), named by {counted(group.num_calls, 'call')}") if part
    )


def _steps(steps: list[int]) -> str:
    shown = ", ".join(map(str, steps[:MAX_STEPS_SHOWN]))
    return f"{shown}, ... {steps[-1]} ({len(steps)})" if len(steps) > MAX_STEPS_SHOWN else shown or "not marked"


def _problems(problems: Problems) -> str:
    numbers = {"repaired": problems.repaired, "dropped": problems.dropped, "clipped": problems.clipped}
    parts = [f"{count:,} {name}" for name, count in numbers.items() if count]
    if problems.clipped:
        parts[-1] += f" (by {problems.clipped_ms:,.3f} ms)"
    if problems.damaged_at_byte is not None:
        parts.append(f"first damage near byte {problems.damaged_at_byte:,} of the text")
    parts += ["the file ends early"] if problems.truncated else []
    return ", ".join(parts) or "none"
