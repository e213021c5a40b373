"""Answer of the metric history in the terminal: a table of groups with their course, then events."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.cli.terminal.console import report_console, report_table
from stepscope.core.documents.history import AskedGroup, HistoryReport, JobsReport, PastEvent
from stepscope.core.errors import printable
from stepscope.core.text.numbers import UNKNOWN, counted, moment, percent, significant

MAX_GROUPS = 200
MAX_EVENTS = 50
_WIDTH = 30
"""Characters of a course."""
_BARS = "▁▂▃▄▅▆▇█"
_TEXT_OF_LABEL = {"uuid": 12}
"""Characters of labels whose beginning suffices."""


def print_history(report: HistoryReport) -> None:
    """Print the answer as text."""
    console = report_console()
    unit = f" in {report.metric.unit}" if report.metric.unit else ""
    by = " and ".join(report.by)
    words = f"{report.statistic} by {by}" if by else f"{report.statistic} of all"
    span = f"{moment(report.start_ns)} to {moment(report.end_ns)}, every {report.step_ns / 1e9:g} s"
    console.print(printable(f"{report.metric.name}{unit}: {words}; {span}"), soft_wrap=True)
    if report.groups:
        _print_groups(report)
    if report.events is not None:
        _print_events(report.events)


def _print_groups(report: HistoryReport) -> None:
    console = report_console()
    shown = report.groups[:MAX_GROUPS]
    names = list(dict.fromkeys(name for group in shown for name in group.labels))
    deviates = any(group.deviation is not None for group in shown)
    columns = [">last", ">mean", ">min", ">max", *([">from median"] if deviates else []), "course"]
    table = report_table(*names, *columns)
    known = [value for group in shown for value in group.values if value is not None]
    least, most = (min(known), max(known)) if known else (0.0, 0.0)
    for group in shown:
        figures = [_number(value) for value in (group.last, group.mean, group.min, group.max)]
        table.add_row(
            *(printable(group.labels.get(name, "")) for name in names),
            *figures,
            *([_deviation(group)] if deviates else []),
            course(group.values, least, most),
        )
    console.print(table)
    left = report.num_groups - len(shown)
    if left > 0:
        console.print(
            f"{counted(left, 'more group')}; --json has all"
            if report.num_groups == len(report.groups)
            else f"of {counted(report.num_groups, 'group')}, those that deviate most"
        )


def course(values: Sequence[float | None], least: float, most: float) -> str:
    """Values as bars between the least and the largest of all; a blank where unknown, the mean where several meet."""
    width = min(_WIDTH, len(values))
    text = ""
    for place in range(width):
        part = values[place * len(values) // width : (place + 1) * len(values) // width]
        known = [value for value in part if value is not None]
        if not known:
            text += " "
        elif most <= least:
            text += _BARS[0]
        else:
            share = (sum(known) / len(known) - least) / (most - least)
            text += _BARS[min(int(share * len(_BARS)), len(_BARS) - 1)]
    return text


def _print_events(events: Sequence[PastEvent]) -> None:
    console = report_console()
    console.print(counted(len(events), "event"))
    for event in events[-MAX_EVENTS:]:
        end = "open" if event.end_ns is None else f"to {moment(event.end_ns)}"
        labels = " ".join(f"{name}={value}" for name, value in event.labels.items())
        line = f"  {moment(event.start_ns)} {end}  {event.kind}  {labels or 'all targets'}  {event.text}"
        console.print(printable(line), soft_wrap=True)
    if len(events) > MAX_EVENTS:
        console.print(f"  and {len(events) - MAX_EVENTS} earlier; --json has all")


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else significant(value, 4)


def _deviation(group: AskedGroup) -> str:
    if group.deviation is None:
        return UNKNOWN
    sign = "+" if group.deviation > 0 else ""
    ratio = "" if group.deviation_ratio is None else f" ({sign}{percent(group.deviation_ratio)})"
    return f"{sign}{_number(group.deviation)}{ratio}"


MAX_JOBS = 60


def print_jobs(report: JobsReport) -> None:
    """Print the jobs as a table."""
    console = report_console()
    console.print(f"{counted(len(report.jobs), 'job')}, {moment(report.start_ns)} to {moment(report.end_ns)}")
    if not report.jobs:
        return
    table = report_table("job", "user", "team", ">GPUs", ">nodes", "first seen", "last seen", "runs")
    for job in report.jobs[:MAX_JOBS]:
        table.add_row(
            printable(job.id),
            printable(job.user or UNKNOWN),
            printable(job.team or UNKNOWN),
            str(job.num_gpus),
            str(len(job.nodes)),
            moment(job.first_ns),
            "live" if job.is_live else moment(job.last_ns),
            printable(", ".join(job.runs)),
        )
    console.print(table)
    if len(report.jobs) > MAX_JOBS:
        console.print(f"{counted(len(report.jobs) - MAX_JOBS, 'more job')}; --json has all")
