"""Machines of a cluster in groups, as lines in a terminal: what is wrong is a line, healthy groups are counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from stepscope.cli.terminal.node_table import acknowledged_text, percent_text, summary_line, verdict_lines
from stepscope.core.errors import printable
from stepscope.core.text.numbers import UNKNOWN, counted, listed
from stepscope.core.text.wording import cause_phrase
from stepscope.workflow.nodes.groups import GroupBy, MachineGroup, Outlier, Problem, job_text
from stepscope.workflow.nodes.status import next_step_of

if TYPE_CHECKING:
    from stepscope.core.documents.node import StatusFinding
    from stepscope.workflow.nodes.answers import NodeAnswer

_MAX_WIDTH = 40
_RIGHT = frozenset({"machines", "GPUs", "util", "tensor", "kW", "max °C"})
_MAX_PLACES = 6
_MAX_PROBLEMS = 3
_WORDS = {GroupBy.JOB: "job", GroupBy.NODE: "machine", GroupBy.RACK: "rack"}
_STYLES = {"critical": "bold red", "warning": "yellow"}


def group_table(
    groups: Sequence[MachineGroup], answers: Sequence[NodeAnswer], by: GroupBy, *, all_groups: bool
) -> Group:
    """Table of groups: a summary, a row for each group in which something is wrong, one row for all others.

    Args:
        all_groups: each has a row.
    """
    word = _WORDS[by]
    names = (word, "job" if by is GroupBy.NODE else "machines", "GPUs", "class", "util", "tensor", "kW", "max °C")
    others = MachineGroup("")
    rows = []
    num_others = 0
    for group in groups:
        if group.is_quiet and not group.has_acknowledged and not all_groups:
            others.add(group)
            num_others += 1
        else:
            rows.append(_row(group, by, group.name or f"no known {word}"))
    if num_others:
        rows.append(_row(others, by, counted(num_others, f"other {word}"), is_rest=True))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(names):
        width = min(_MAX_WIDTH, max((cell_len(str(row[place])) for row in rows), default=0))
        table.add_column(name, justify="right" if name in _RIGHT else "left", no_wrap=True, min_width=width)
    table.add_column("what is wrong", no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*row)
    return Group(summary_line(answers), table, *verdict_lines(answers))


def _row(group: MachineGroup, by: GroupBy, name: str, *, is_rest: bool = False) -> Sequence[Text | str]:
    watts, hottest = group.total("power_watts"), group.most("temperature_celsius")
    of_node = "" if is_rest else listed(map(job_text, group.jobs.values()), 2)
    severities = (one.severity for one in group.findings if one.acknowledged is None)
    severity = min(severities, default="")  # critical < info < warning
    wrong = "; ".join(_wrong(group, by))
    return (
        Text(printable(name), style="dim" if is_rest else "bold"),
        Text(printable(of_node if by is GroupBy.NODE else f"{len(group.agents):,}")),
        f"{group.num_gpus:,}",
        _classes(group),
        percent_text(group.middle("utilization_ratio")),
        percent_text(group.middle("tensor_active_ratio")),
        UNKNOWN if watts is None else f"{watts / 1000:,.1f}",
        UNKNOWN if hottest is None else f"{hottest:.0f}",
        Text(printable(wrong), style=_STYLES.get(severity, "")),
    )


def _classes(group: MachineGroup) -> str:
    classes = group.classes
    if not classes:
        return UNKNOWN
    ((cause, count),) = classes.most_common(1)
    others = sum(classes.values()) - count
    return cause_phrase(cause) + (f" +{others:,}" if others else "")


def _wrong(group: MachineGroup, by: GroupBy) -> Iterator[str]:
    """What is wrong in a group, in few words."""
    parts = [
        f"{_place(one, by)}: {one.message}{acknowledged_text(one.acknowledged)}".removeprefix(": ")
        for one in group.findings
    ]
    parts += [_outlier_text(machine, one, by) for machine, one in group.outliers]
    yield from parts[:_MAX_PROBLEMS]
    if len(parts) > _MAX_PROBLEMS:
        yield f"{len(parts) - _MAX_PROBLEMS:,} more"


def _place(finding: StatusFinding, by: GroupBy) -> str:
    machine = "" if by is GroupBy.NODE else finding.host or finding.agent.partition("://")[2]
    return " ".join(filter(None, (machine, f"GPU {finding.gpu}" if finding.gpu else "")))


def _outlier_text(machine: str, outlier: Outlier, by: GroupBy) -> str:
    value, usual = (_UNITS[outlier.metric](one) for one in (outlier.value, outlier.usual))
    place = f"GPU {outlier.gpu}" if by is GroupBy.NODE else f"{machine} GPU {outlier.gpu}"
    return f"{place}: {value}, its job {usual}"


_UNITS = {
    "utilization_ratio": lambda value: f"{100 * value:.0f}% busy",
    "sm_clock_hertz": lambda value: f"{value / 1e6:,.0f} MHz",
    "power_watts": lambda value: f"{value:,.0f} W",
    "temperature_celsius": lambda value: f"{value:.0f} °C",
}


def problem_lines(problems: Iterable[Problem], by: GroupBy | None) -> Iterator[str]:
    """Lines of a status: each problem with its severity, group, places, message and action."""
    for one in problems:
        finding = one.finding
        group = "" if by in (None, GroupBy.NODE) else f"{one.group or f'no known {_WORDS[by]}'}: "
        message = finding.message if one.is_same else f"{finding.message}, and others like it"
        line = f"{finding.severity}: {group}{_places(one, by)}: {message}"
        further = next_step_of(finding)
        yield printable(f"{line}; {further}" if further else line)


def _places(problem: Problem, by: GroupBy | None) -> str:
    finding = problem.finding
    machines = dict.fromkeys(machine for machine, _ in problem.places)
    if len(problem.places) == 1 or by is GroupBy.NODE:
        (machine, gpu), *_ = problem.places
        gpus = listed(dict.fromkeys(gpu for _, gpu in problem.places if gpu), _MAX_PLACES)
        uuid = f" ({finding.uuid})" if finding.uuid and len(problem.places) == 1 else ""
        return f"{machine} GPU {gpus}{uuid}" if gpu else machine
    if not problem.num_gpus:
        return f"{counted(problem.num_machines, 'machine')} ({listed(machines, _MAX_PLACES)})"
    places = listed((f"{machine} GPU {gpu}" if gpu else machine for machine, gpu in problem.places), _MAX_PLACES)
    return f"{counted(problem.num_gpus, 'GPU')} of {counted(problem.num_machines, 'machine')} ({places})"
