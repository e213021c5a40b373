"""The verb goodput: what the GPU-time of runs, jobs and clusters went to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli.options import fetches_records, json_option
from stepscope.cli.terminal.answers import print_report
from stepscope.cli.terminal.console import print_hanging, report_console, report_table
from stepscope.core.errors import printable

if TYPE_CHECKING:
    from rich.console import Console

    from stepscope.core.documents.goodput import GoodputReport, JobGoodput


@click.command("goodput")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@json_option
@fetches_records
def goodput_command(paths: tuple[str, ...], as_json: bool) -> None:
    """Show what the GPU-time of a job went to: productive training, restarts, lost steps, checkpoints.

    PATH is a run directory or a folder of them. Runs with the same label "job", or else of the same name, are one job;
    several jobs are also shown together. Nothing but run.json and the step records is read.
    """
    from stepscope.workflow.goodput import read_goodput

    print_report(read_goodput(paths), _print_goodput, as_json=as_json)


MAX_ATTEMPTS = 20
MAX_JOBS = 50


def _print_goodput(report: GoodputReport) -> None:
    console = report_console()
    if len(report.jobs) == 1:
        _print_job(console, report.jobs[0])
    else:
        _print_cluster(console, report)


def _print_job(console: Console, job: JobGoodput) -> None:
    from stepscope.core.text import goodput as text
    from stepscope.core.text.numbers import moment

    print_hanging(console, printable(text.goodput_headline(job)))
    print_hanging(console, f"  Lost      {text.loss_words(job.time)}")
    print_hanging(console, f"  Steps     {text.steps_words(job)}")
    if job.checkpoints is not None:
        print_hanging(console, f"  Saving    {text.checkpoint_words(job.checkpoints)}")
    print_hanging(console, f"  Advice    {text.advice_words(job.checkpoint_advice, job.checkpoints)}")
    if len(job.attempts) == 1:
        return
    has_runs = len(job.runs) > 1
    columns = [">ranks", "started", "ended", ">steps", ">lost", ">repeated", ">restart", ">recovery"]
    table = report_table("attempt", *columns, *(["run"] if has_runs else []))
    for place, attempt in enumerate(job.attempts[:MAX_ATTEMPTS], 1):
        first = place == 1
        table.add_row(
            str(place),
            str(attempt.world_size),
            moment(attempt.start_ns),
            text.ended_words(attempt),
            "none" if attempt.first_step is None else f"{attempt.first_step:,}–{attempt.last_step:,}",
            _number(attempt.num_lost_steps),
            _number(attempt.num_repeated_steps),
            "" if first else text.duration(attempt.restart_seconds),
            "" if first else text.duration(attempt.recovery_seconds),
            *([printable(attempt.run)] if has_runs else []),
        )
    console.print(table)
    if len(job.attempts) > MAX_ATTEMPTS:
        console.print(f"{len(job.attempts) - MAX_ATTEMPTS} more attempts are in --json")


def _number(number: int | None) -> str:
    from stepscope.core.text.numbers import UNKNOWN

    return UNKNOWN if number is None else f"{number:,}"


def _print_cluster(console: Console, report: GoodputReport) -> None:
    from stepscope.core.text import goodput as text
    from stepscope.core.text.numbers import percent

    on_gpu = all(job.device_kind == "gpu" for job in report.jobs)
    print_hanging(console, text.total_headline(report.total, on_gpu=on_gpu))
    print_hanging(console, f"  Lost      {text.loss_words(report.total.time)}")
    unit = "GPU-time" if on_gpu else "rank-time"
    table = report_table("job", f">{unit}", ">goodput", ">attempts", ">lost steps", "largest losses")
    for job in report.jobs[:MAX_JOBS]:
        table.add_row(
            printable(job.job),
            text.rank_time(job.rank_seconds, on_gpu=job.device_kind == "gpu"),
            percent(job.goodput),
            str(len(job.attempts)),
            _number(job.num_lost_steps),
            text.loss_words(job.time, most=3),
        )
    console.print(table)
    if len(report.jobs) > MAX_JOBS:
        console.print(f"{len(report.jobs) - MAX_JOBS} more jobs are in --json")
