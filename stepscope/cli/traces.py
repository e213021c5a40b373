"""Verbs that read a job's traces: analyze, report, compare, whatif, trace."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.cli import CommandGroup, options
from stepscope.cli.history_source import Opener, history_source
from stepscope.cli.terminal.answers import print_document, print_report, print_warnings
from stepscope.cli.terminal.console import file_progress
from stepscope.core.text.numbers import counted, form, number_runs, unknown_name
from stepscope.core.text.wording import place_words
from stepscope.core.vocabulary import Cause

if TYPE_CHECKING:
    from stepscope.core.documents.analysis import CaptureAnalyses
    from stepscope.workflow.analyze import AnalysisResult
    from stepscope.workflow.fan_out.engine import FanOut
    from stepscope.workflow.trace_info import GroupInfo, TraceFileInfo, TraceInfo, TraceProblems


@click.command("analyze")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@options.json_option
@click.option(
    "--window",
    type=click.Choice(["steps", "file"]),
    default="steps",
    help="Analyze the profiled steps, or whole files.",
)
@options.capture_option(takes_all=True)
@click.option("--network-gbits", type=options.POSITIVE, metavar="N", help="Assume N Gbit/s of each GPU's network card.")
@click.option("--html", type=options.FILE, metavar="FILE", help="Also write the report as one HTML file.")
@click.option("--keep/--no-keep", default=True, help="Keep the result in the run directory, if one is given.")
@history_source(default=None, text="Take counters that the run has none of from the history")
@options.fan_out_options
@options.enters_only_run
def analyze_command(
    paths: tuple[str, ...],
    as_json: bool,
    window: str,
    capture: int | str | None,
    network_gbits: float | None,
    html: Path | None,
    keep: bool,
    open_history: Opener | None,
    fan_out: FanOut,
) -> None:
    """Attribute all GPU time to categories, follow each wait to its cause, and give a verdict.

    PATH is a run directory, a folder or archive (tar, tar.gz, zip) of traces, trace files, or any fsspec URL (s3://...).
    """
    from stepscope.store.files import check_writable
    from stepscope.workflow.analyze import analyze, analyze_captures

    network = None if network_gbits is None else network_gbits * 1e9 / 8
    if capture == "all":
        if html is not None:
            raise click.UsageError("--html writes one analysis: choose a capture by its number")
        with file_progress("reading") as on_progress:
            analyses = analyze_captures(
                paths,
                whole_file=window == "file",
                network_bytes_per_second=network,
                fan_out=fan_out,
                on_progress=on_progress,
            )
        _show_all(analyses, as_json=as_json)
        return
    if html is not None:
        check_writable(html)
    with file_progress("reading") as on_progress:
        result = analyze(
            paths,
            whole_file=window == "file",
            capture=None if capture is None else int(capture),
            keep=keep,
            with_timelines=html is not None,
            network_bytes_per_second=network,
            history=None if open_history is None else open_history(),
            fan_out=fan_out,
            on_progress=on_progress,
        )
    try:
        if html is not None:
            from stepscope.workflow.panels.report import report_title, write_html_report

            write_html_report(result.analysis, result.timelines, html, title=report_title(paths))
    finally:  # the verdict is shown even if the file cannot be written
        _show_analysis(result, as_json=as_json)


def _show_analysis(result: AnalysisResult, *, as_json: bool) -> None:
    if as_json:
        print_document(result.analysis)
        return
    from stepscope.cli.terminal.analysis import print_analysis

    print_analysis(result.analysis)
    print_warnings(result.analysis.warnings)
    if result.kept_in is not None:
        click.echo(f"kept in {result.kept_in}; see it with: stepscope dashboard --runs {result.kept_in}", err=True)


def _show_all(analyses: CaptureAnalyses, *, as_json: bool) -> None:
    if as_json:
        print_document(analyses)
        return
    from stepscope.cli.terminal.analysis import print_analysis

    for one in analyses.captures:
        click.echo(f"CAPTURE {one.capture}")
        print_analysis(one.analysis)
        print_warnings(one.analysis.warnings)
    print_warnings(analyses.warnings)


@click.command("report")
@click.argument("paths", nargs=-1, required=True, metavar="RUN...")
@click.option("-o", "--output", type=options.FILE, default=Path("stepscope-report.html"), help="Write this file.")
@options.fan_out_options
@options.enters_only_run
def report_command(paths: tuple[str, ...], output: Path, fan_out: FanOut) -> None:
    """Write verdict, time breakdown, time line, communication and kernels as one HTML file that needs no network.

    RUN is a run directory, a folder of traces, trace files, a saved analysis.json, or any fsspec URL. An analysis that
    is kept in the run and up to date is used.
    """
    from stepscope.workflow.panels.report import report_of_run

    with file_progress("reading") as on_progress:
        written = report_of_run(paths, output, fan_out=fan_out, on_progress=on_progress)
    click.echo(f"wrote {written} ({written.stat().st_size / 1e3:,.0f} kB)", err=True)


@click.command("compare")
@click.argument("a")
@click.argument("b")
@click.option(
    "--fail-on",
    multiple=True,
    metavar="METRIC:+N%,...",
    help="Exit with status 1 when a metric surely rose (+) or fell (-) by more (documentation: Gate metrics).",
)
@click.option(
    "--inconclusive",
    type=click.Choice(["pass", "fail"]),
    default="pass",
    show_default=True,
    help="What a gate does that the runs cannot decide.",
)
@options.json_option
@click.option("--junit", type=options.FILE, help="Also write a JUnit file with one test case per gate.")
@click.option(
    "--run-spread",
    type=click.FloatRange(min=0, max=100),
    metavar="PERCENT",
    help="Assume that runs of the same code differ by this standard deviation, with fewer than 4 runs.  "
    "[default: 1.5; without a GPU 6]",
)
@options.fan_out_options
def compare_command(
    a: str,
    b: str,
    fail_on: tuple[str, ...],
    inconclusive: str,
    as_json: bool,
    junit: Path | None,
    run_spread: float | None,
    fan_out: FanOut,
) -> None:
    """Compare B with A: step time, time breakdown, causes, kernels, collectives; report only significant changes.

    A and B are runs, folders of traces, saved analysis.json files, or sets of these: separated by commas, a directory
    of runs, a glob.
    """
    from stepscope.cli.terminal.comparison import undecided_notice
    from stepscope.core.documents.comparison import UNDECIDED, GateOutcome
    from stepscope.store.files import check_writable, write_whole
    from stepscope.workflow.compare import compare
    from stepscope.workflow.junit import gates_as_junit

    if junit is not None:
        check_writable(junit)
    with file_progress("comparing") as on_progress:
        spread = None if run_spread is None else run_spread / 100
        comparison = compare(a, b, fail_on=fail_on, assumed_spread=spread, fan_out=fan_out, on_progress=on_progress)
    undecided = [gate for gate in comparison.gates if gate.outcome in UNDECIDED]
    failing = {GateOutcome.FAILED, *(UNDECIDED if inconclusive == "fail" else ())}
    any_failed = any(gate.outcome in failing for gate in comparison.gates)
    try:
        if junit is not None:
            write_whole(junit, gates_as_junit(comparison, failing))
    finally:  # the comparison is shown even if the file cannot be written
        try:
            if as_json:
                print_document(comparison)
            else:
                from stepscope.cli.terminal.comparison import print_comparison

                print_comparison(comparison)
                print_warnings(comparison.warnings)
        except BrokenPipeError:  # as in `compare ... | head -1`
            if not any_failed:
                raise
    if undecided:
        print_warnings([undecided_notice(undecided, inconclusive)])
    if any_failed:
        click.get_current_context().exit(1)


@click.command("whatif")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--fix", "causes", multiple=True, metavar="CAUSE", help="Predict only this fix; repeatable.  [default: all]"
)
@options.capture_option()
@click.option("--unprofiled-ms", type=options.POSITIVE, help="Calibrate to this unprofiled step time.")
@options.json_option
@options.enters_only_run
@options.fan_out_options
def whatif_command(
    paths: tuple[str, ...],
    causes: tuple[str, ...],
    capture: int | None,
    unprofiled_ms: float | None,
    as_json: bool,
    fan_out: FanOut,
) -> None:
    """Predict a job's step time with one cause removed at a time, by replaying its traces across ranks.

    PATH is a run directory, a folder or archive of traces, trace files, any fsspec URL (s3://...), or an operation
    table (trace-*.parquet, as ByteDance's StragglerAnalysis reads them).
    """
    from stepscope.workflow.what_if import FIXABLE, what_if

    unknown = [cause for cause in causes if cause not in FIXABLE]
    if unknown:
        raise unknown_name("fix", unknown[0], sorted(FIXABLE), where="--fix")
    with file_progress("reading") as on_progress:
        report = what_if(
            paths,
            causes=[Cause(cause) for cause in causes],
            capture=capture,
            unprofiled_step_ms=unprofiled_ms,
            fan_out=fan_out,
            on_progress=on_progress,
        )
    if as_json:
        print_document(report)
        return

    from stepscope.cli.terminal.what_if import print_what_if
    from stepscope.store.runs import find_analysis

    print_what_if(report, find_analysis(Path(paths[0])) if len(paths) == 1 else None)
    print_warnings(report.warnings)


MAX_STEPS_SHOWN = 8
MAX_GROUPS_SHOWN = 12


@click.group("trace", cls=CommandGroup)
def trace_command() -> None:
    """Inspect trace files."""


@trace_command.command("info", short_help="Show what a trace holds, what was repaired, and what is missing.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@options.json_option
@options.enters_only_run
def trace_info_command(files: tuple[str, ...], as_json: bool) -> None:
    """Show what a trace holds: rank, steps, versions, GPU, events, what was repaired, and what is missing.

    FILE is a trace file, a folder or archive of traces, a run directory, or any fsspec URL (s3://...).
    """
    from stepscope.workflow.trace_info import read_trace_info

    with file_progress("reading") as on_progress:
        trace_info = read_trace_info(files, on_progress=on_progress)
    print_report(trace_info, _print_trace_info, as_json=as_json)


def _print_trace_info(trace_info: TraceInfo) -> None:
    """Print a table for each file on a terminal, else `path: name: value` lines, which grep and awk can take apart."""
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
        ("problems", ", ".join(_problems(file.problems)) or "none"),
    ]
    return [(name, value) for name, value in facts if value]


def _problems(problems: TraceProblems) -> Iterator[str]:
    for name in ("repaired", "dropped", "clipped"):
        if count := getattr(problems, name):
            yield f"{count:,} {name}" + (f" (by {problems.clipped_ms:,.3f} ms)" if name == "clipped" else "")
    if problems.damaged_at_byte is not None:
        yield f"first damage near byte {problems.damaged_at_byte:,} of the text"
    if problems.truncated:
        yield "the file ends early"
    if problems.no_gpu_activity:
        yield "no GPU activity, though the job uses a GPU"
    if problems.lost_launches:
        yield f"{counted(problems.lost_launches, 'kernel launch')} left no kernel"
    if problems.lost_graph_launches:
        yield f"{counted(problems.lost_graph_launches, 'graph replay')} left no kernels"


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
