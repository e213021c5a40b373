"""The verb runs: stored runs with their sizes, their deletion, and their upload."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from stepscope.cli import CommandGroup
from stepscope.cli.options import json_option
from stepscope.cli.quantities import Size, Span
from stepscope.cli.terminal.answers import print_document, print_report, print_warnings
from stepscope.cli.terminal.console import print_hanging, report_console, report_table
from stepscope.core.errors import DataError, UsageError, printable
from stepscope.core.text.numbers import counted, moment, size

if TYPE_CHECKING:
    from stepscope.core.documents.stored_runs import PruneReport, RunList, UploadReport


@click.group("runs", cls=CommandGroup)
def runs_command() -> None:
    """List stored runs with their sizes, delete old ones, or upload runs."""


_where = click.argument("where", default="runs", metavar="[DIR|URL]")


@runs_command.command("list", short_help="List runs with their sizes.")
@_where
@json_option
def list_command(where: str, as_json: bool) -> None:
    """List the runs in a folder or below a fsspec URL, the oldest first, with their sizes by kind of file.

    DIR is a folder of runs or a run; default: runs. A run is "running" while a process has its files open, within ten
    minutes of its last write, and where it recorded no end for a day.
    """
    from stepscope.workflow.stored_runs.prune import list_runs

    print_report(list_runs(where), _print_list, as_json=as_json)


_KINDS = ("traces", "views", "telemetry", "dumps", "checkpoints", "other")
_ALWAYS = ("traces", "views", "telemetry", "dumps")


def _print_list(runs: RunList) -> None:
    console = report_console()
    if not runs.runs:
        console.print(f"{printable(runs.where)}: no runs", soft_wrap=True)
        return
    kinds = [kind for kind in _KINDS if kind in _ALWAYS or getattr(runs.bytes, kind)]
    table = report_table("run", "state", "last written", ">ranks", ">size", *(f">{kind}" for kind in kinds))
    for run in runs.runs:
        table.add_row(
            printable(run.name),
            run.state.value,
            moment(run.written_ns),
            "" if run.world_size is None else f"{run.world_size:,}",
            size(run.total_bytes),
            *(size(getattr(run.bytes, kind)) for kind in kinds),
        )
    total = [size(getattr(runs.bytes, kind)) for kind in kinds]
    table.add_section()
    table.add_row(counted(len(runs.runs), "run"), "", "", "", size(runs.total_bytes), *total)
    console.print(table)


_Function = Callable[..., None]


def _rule_options(function: _Function) -> _Function:
    """Add the options that say which runs to delete."""
    for option in reversed(
        (
            click.option("--older-than", type=Span(), metavar="AGE", help="Delete runs last written so long ago: 30d."),
            click.option("--larger-than", type=Size(), metavar="SIZE", help="Delete runs that are larger: 50GB."),
            click.option(
                "--keep-total",
                type=Size(),
                metavar="SIZE",
                help="Delete the oldest until all runs together have at most SIZE.",
            ),
            click.option(
                "--run", "names", multiple=True, metavar="NAME", help="Delete this run; repeatable, * fits all."
            ),
            click.option("--traces-only", is_flag=True, help="Delete the traces alone; keep steps, views and dumps."),
            click.option(
                "--with-other-files",
                is_flag=True,
                help="Delete also runs that hold checkpoints or other files of yours.",
            ),
        )
    ):
        function = option(function)
    return function


@runs_command.command("prune", short_help="Delete runs by age, size or name.")
@_where
@_rule_options
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")
@click.option("--yes", "-y", is_flag=True, help="Delete without asking.")
@json_option
def prune_command(where: str, dry_run: bool, yes: bool, as_json: bool, **rules: Any) -> None:
    """Delete the runs that fit all the given rules: by age, size or name. Asks first, unless --yes is given.

    A run that is still written is never deleted, nor one that holds checkpoints or files that stepscope did not write.
    Each run goes as a whole; a prune that is killed is finished by the next one.

    Exits with status 3 where a run could not be deleted.
    """
    from stepscope.workflow.stored_runs.prune import PruneRules, Pruning

    pruning = Pruning(
        where,
        PruneRules(
            names=rules["names"],
            older_than_seconds=rules["older_than"],
            larger_than_bytes=rules["larger_than"],
            keep_total_bytes=rules["keep_total"],
            traces_only=rules["traces_only"],
            with_other_files=rules["with_other_files"],
        ),
    )
    if dry_run:
        print_report(pruning.plan, _print_prune, as_json=as_json)
        return
    if not yes:
        _ask(pruning.plan)
    report = pruning.carry_out()
    if as_json:
        print_document(report)
    else:
        _print_prune(report)
    print_warnings(report.warnings)
    failed = [run for run in report.runs if run.why.startswith("it cannot be deleted")]
    if failed or any(notice.code == "not_deleted" for notice in report.warnings):
        raise DataError(
            f"{counted(len(failed), 'run')} could not be deleted", where=where, what_next="check permissions, try again"
        )


@runs_command.command("upload", short_help="Upload runs to an object store.")
@click.argument("path", metavar="DIR")
@click.argument("url", metavar="URL")
@click.option("--delete", is_flag=True, help="Delete traces and other large files here once they have arrived.")
@json_option
def upload_command(path: str, url: str, delete: bool, as_json: bool) -> None:
    """Upload a run, or the runs in a folder, below URL: any that fsspec can write, such as s3://bucket/runs.

    It goes on where an earlier upload ended, also one of `profile(out=URL)`; several nodes may upload their parts of a
    run to the same URL. Exits with status 4 where the store does not answer.
    """
    from stepscope.workflow.transfer.upload_runs import upload_runs

    print_report(upload_runs(path, url, keep=not delete), _print_uploads, as_json=as_json)


def _print_uploads(report: UploadReport) -> None:
    console = report_console()
    for run in report.runs:
        freed = f"; {size(run.freed_bytes)} deleted here" if run.freed_bytes else ""
        whole = "uploaded" if run.is_whole else "uploaded so far"
        text = f"{whole}  {counted(run.num_files, 'file')}, {size(run.bytes)}, in {printable(run.url)}{freed}"
        print_hanging(console, text)


def _ask(plan: PruneReport) -> None:
    """Show the plan on stderr and ask.

    Raises:
        UsageError: nobody can be asked.
        click.Abort: the answer is no.
    """
    deleted = [run for run in plan.runs if not run.is_kept]
    if not deleted:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"would delete {counted(len(deleted), 'run')}, and nobody can be asked here",
            what_next="add --yes, or --dry-run to see them",
        )
    for line in _prune_lines(plan):
        click.echo(line, err=True)
    click.confirm("Delete?", err=True, abort=True)


def _print_prune(report: PruneReport) -> None:
    console = report_console()
    for line in _prune_lines(report):
        print_hanging(console, line)


def _prune_lines(report: PruneReport) -> list[str]:
    """Head, and a line a run; those that are kept after those that go."""
    deleted, kept = [run for run in report.runs if not run.is_kept], [run for run in report.runs if run.is_kept]
    done = "would delete" if report.is_dry_run else "deleted"
    what = f"the traces of {counted(len(deleted), 'run')}" if report.traces_only else counted(len(deleted), "run")
    left = f"{size(report.left_bytes)} of runs {'would stay' if report.is_dry_run else 'are left'}"
    lines = [f"{done} {what}, {size(report.freed_bytes)}; {left} in {printable(report.where)}"]
    lines += [f"  {done}  {printable(run.name)}  {size(run.freed_bytes)}" for run in deleted]
    return lines + [f"  kept  {printable(run.name)}: {printable(run.why)}" for run in kept]
