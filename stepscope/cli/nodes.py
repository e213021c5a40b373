"""Verbs that ask the agents of GPU nodes: capture, status, top."""

from __future__ import annotations

import json
import pwd
import re
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from stepscope.cli.options import POSITIVE, agent_client_options
from stepscope.cli.terminal.answers import print_warnings
from stepscope.cli.terminal.console import report_console
from stepscope.core.documents.node import NodeState, NodeView, StatusFinding, StatusReport
from stepscope.core.errors import DataError, UnreachableError, printable
from stepscope.core.protocol import captures
from stepscope.core.text.numbers import counted, size

if TYPE_CHECKING:
    from rich.console import RenderableType

    from stepscope.workflow.nodes.agent_client import AgentClient
    from stepscope.workflow.nodes.answers import NodeAnswer, NodeWatch
    from stepscope.workflow.nodes.capture import CapturedJob


MAX_SHOWN_RANKS = 16


@click.command("capture")
@agent_client_options
@click.option("--run", help="Profile the run of this name or directory.")
@click.option("--job", help="Profile the scheduler's job of this id, or of the name in `stepscope top`.")
@click.option("--user", help="Profile training of this user, by name or uid.  [default: who has used the name longest]")
@click.option("--steps", type=click.IntRange(min=1), required=True, help="Profile this many optimizer steps.")
@click.option("--ranks", default="all", metavar="0,3|all", help="Profile these ranks.")
@click.option(
    "--start-step", type=click.IntRange(min=0), help="Begin with this step.  [default: the earliest possible]"
)
@click.option("--max-bytes", type=click.IntRange(min=1), help="Limit each rank's compressed trace to this many bytes.")
@click.option("--max-overhead", type=click.FloatRange(min=0), help="Stop when steps slow down by this share, as 0.5.")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=1.0),
    default=600.0,
    help="Give up after this many seconds.",
)
@click.option("--wait/--no-wait", default=True, help="Wait until the traces are written.")
@click.option("--json", "as_json", is_flag=True, help="Print one stepscope.capture/1 document.")
def capture_command(
    agents: list[AgentClient],
    run: str | None,
    job: str | None,
    user: str | None,
    steps: int,
    ranks: str,
    start_step: int | None,
    max_bytes: int | None,
    max_overhead: float | None,
    timeout_seconds: float,
    wait: bool,
    as_json: bool,
) -> None:
    """Profile steps of a running job through the agents of its nodes, without a restart.

    All ranks begin with the same step. Traces are written into the run's directory. Ctrl-C cancels the capture.
    """
    from stepscope.workflow.nodes.capture import capture_job

    if run is None and job is None:
        raise click.UsageError("give --run or --job")
    request = captures.CaptureRequest(
        "new",
        steps,
        start_step=start_step,
        ranks=_ranks(ranks),
        max_bytes=max_bytes,
        max_overhead=max_overhead,
        deadline_unix_ns=time.time_ns() + int(timeout_seconds * 1e9),
    )
    order = captures.CaptureOrder(request, captures.CaptureSelector(run, job, _uid(user)))
    captured = capture_job(with_token(agents), order, wait=wait, log=lambda line: click.echo(line, err=True))
    if as_json:
        click.echo(json.dumps(_capture_document(captured)))
    elif wait:
        click.echo("\n".join(_capture_lines(captured)))
    else:
        click.echo(captured.order.request.id)
    print_warnings(captured.warnings)
    if wait:
        _check_capture(captured)


def with_token(agents: list[AgentClient]) -> list[AgentClient]:
    """Agents of nodes with the token of this user's own agent here, where no token file is given."""
    from stepscope.agent.state_directory import TOKEN_FILE, read_agent_token, state_directory

    if agents[0].token:
        return agents
    token = read_agent_token(state_directory() / TOKEN_FILE)
    return [replace(agent, token=token) for agent in agents]


def _uid(user: str | None) -> int | None:
    if user is None:
        return None
    if user.isascii() and user.isdecimal():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise click.UsageError(f"--user {user}: no such user on this machine; give the uid") from None


def _ranks(text: str) -> tuple[int, ...] | None:
    if text == "all":
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 8 for part in parts):
        raise click.UsageError(f"--ranks takes numbers with commas, or all, not {text!r}")
    return tuple(sorted({int(part) for part in parts}))


def _capture_lines(captured: CapturedJob) -> list[str]:
    shown = captured.ranks[:MAX_SHOWN_RANKS]
    lines = []
    for one in shown:
        rank, progress = one.target.rank, one.progress
        words = [f"rank {'?' if rank is None else rank}", progress.state.value]
        if progress.path and progress.steps:
            first, steps = progress.start_step, progress.steps
            words.append(counted(steps, "step") if first is None else f"steps {first} to {first + steps - 1}")
            words.append(f"{size(progress.bytes)}  {printable(progress.path)}")
        words += [f"stopped by {progress.stopped_by}"] if progress.stopped_by else []
        words += [printable(progress.reason)] if progress.reason else []
        lines.append("  ".join(words))
    if len(captured.ranks) > len(shown):
        lines.append(f"and {counted(len(captured.ranks) - len(shown), 'rank')} more")
    if captured.folder:
        lines.append(f"stepscope analyze {shlex.quote(printable(captured.folder))}")
    return lines


def _capture_document(captured: CapturedJob) -> dict[str, object]:
    return {
        "schema": captures.CAPTURE_SCHEMA,
        "id": captured.order.request.id,
        "state": captured.state,
        "folder": captured.folder,
        "agents": [{"url": url, **captures.report_document(report)} for url, report in captured.reports.items()],
        "warnings": [asdict(warning) for warning in captured.warnings],
    }


def _check_capture(captured: CapturedJob) -> None:
    """Check that every requested rank has left a trace.

    Raises:
        DataError: one has not.
    """
    request = captured.order.request
    where = f"capture {request.id}"
    if request.ranks is not None and captured.missing_ranks:
        raise DataError("not all requested ranks are there", where=where)
    without = [one for one in captured.ranks if one.progress.state is not captures.CaptureState.DONE]
    if without:
        rank, progress = without[0].target.rank, without[0].progress
        num_without = f"{len(without)} of {counted(len(captured.ranks), 'rank')}"
        what = f"{num_without} left no trace; rank {rank}: {progress.state}"
        raise DataError(f"{what}, {progress.reason}" if progress.reason else what, where=where)


_Function = Callable[..., None]


def _grouping_options(function: _Function) -> _Function:
    """Add the options of verbs that ask many nodes: grouping, racks, time limit."""
    for option in (
        click.option(
            "--timeout",
            "timeout_seconds",
            type=POSITIVE,
            default=2.0,
            help="Give up silent agents once none has answered for this many seconds.",
        ),
        click.option(
            "--rack-from",
            default="",
            show_default=False,
            metavar="REGEX",
            help="Take racks from host names by this expression, its first group or all of it.  "
            "[default: the targets' label rack]",
        ),
        click.option("--by", type=click.Choice(["job", "node", "rack"]), help="Group by job, node or rack."),
    ):
        function = option(function)
    return function


def _rack(pattern: str) -> Callable[[NodeAnswer], str]:
    from stepscope.workflow.nodes.groups import rack_names

    try:
        return rack_names(re.compile(pattern) if pattern else None)
    except re.error as error:
        raise click.UsageError(f"--rack-from is not a regular expression ({error})") from None


@click.command("status")
@agent_client_options
@_grouping_options
@click.option("--json", "as_json", is_flag=True, help="Print one stepscope.status/1 document.")
@click.pass_context
def status_command(
    context: click.Context,
    clients: list[AgentClient],
    by: str | None,
    rack_from: str,
    timeout_seconds: float,
    as_json: bool,
) -> None:
    """List what is wrong with the GPUs of one or many machines, and what to do about it.

    Of more than 24 findings, and with --by, those of one kind are one line. Exits with status 0 when there are at most
    notes (info), 1 when anything is wrong or an agent does not answer, 4 when no agent answers, or nothing is known of
    any GPU: no driver is there.
    """
    from stepscope.workflow.nodes.answers import answers_of, check_answers
    from stepscope.workflow.nodes.status import is_nothing_known, is_wrong, status_of

    rack = _rack(rack_from)
    answers = answers_of(clients, seconds=timeout_seconds, view=NodeView.STATUS)
    report = status_of(answers, rack)
    is_unknown = is_nothing_known(report)
    click.echo(json.dumps(asdict(report)) if as_json else "\n".join(_status_lines(report, by, is_unknown=is_unknown)))
    check_answers(answers)
    context.exit(UnreachableError.exit_code if is_unknown else 1 if any(map(is_wrong, report.findings)) else 0)


_MAX_FINDING_LINES = 24
"""Of more findings, those of one kind are one line."""


def _status_lines(report: StatusReport, by: str | None, *, is_unknown: bool) -> list[str]:
    from stepscope.workflow.nodes.status import is_wrong

    num_gpus = sum(node.num_gpus for node in report.nodes)
    unknown = sum(1 for node in report.nodes if node.state is NodeState.UNKNOWN)
    wrong = [one for one in report.findings if is_wrong(one)]
    num_acknowledged = sum(1 for one in report.findings if one.acknowledged is not None)
    num_notes = len(report.findings) - len(wrong) - num_acknowledged
    is_joined = by is not None or len(report.findings) > _MAX_FINDING_LINES
    parts = [counted(len(wrong), "finding")] if report.findings else ["nothing is wrong"]
    if is_unknown:
        parts = ["nothing is known of their health"]
    elif wrong:
        sick = {(finding.agent, finding.gpu) for finding in wrong if finding.gpu}
        parts.append(f"{counted(len(sick), 'GPU')} not well")
    if unknown and not is_unknown:
        parts.append(f"{counted(unknown, 'machine')} unknown")
    if is_joined:
        num_ok = sum(1 for node in report.nodes if node.state is NodeState.OK)
        parts.append(f"{counted(num_ok, 'machine')} without a finding")
    if num_acknowledged:
        parts.append(f"{num_acknowledged} acknowledged")
    if num_notes:
        parts.append(counted(num_notes, "note"))
    head = f"{counted(len(report.nodes), 'machine')}, {counted(num_gpus, 'GPU')}: " + ", ".join(parts)
    if not is_joined:
        return [head, *map(_finding_line, report.findings)]
    from stepscope.cli.terminal.group_table import problem_lines
    from stepscope.workflow.nodes.groups import GroupBy, problems_of

    group_by = GroupBy(by) if by else None
    return [head, *problem_lines(problems_of(report, group_by), group_by)]


def _finding_line(finding: StatusFinding) -> str:
    from stepscope.workflow.nodes.status import next_step_of

    place = finding.host or finding.agent.partition("://")[2]
    if finding.gpu:
        place = f"{place} GPU {finding.gpu}" + (f" ({finding.uuid})" if finding.uuid else "")
    line = f"{finding.severity}: {place}: {finding.message}"
    further = next_step_of(finding)
    return printable(f"{line}; {further}" if further else line)


_REDRAW_SECONDS = 0.5


@click.command("top")
@agent_client_options
@_grouping_options
@click.option("--all", "all_groups", is_flag=True, help="Show all groups, not only those with a problem or an outlier.")
@click.option("--once", is_flag=True, help="Print the table once and exit.")
@click.option("--interval", type=click.FloatRange(0.5), default=2.0, help="Poll the agents every so many seconds.")
@click.option("--job", default="", show_default=False, help="Show only the GPUs of the job of this name or id.")
@click.option("--sick", is_flag=True, help="Show only GPUs and agents with a problem.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and exit.")
def top_command(
    clients: list[AgentClient],
    by: str | None,
    rack_from: str,
    timeout_seconds: float,
    all_groups: bool,
    once: bool,
    interval: float,
    job: str,
    sick: bool,
    as_json: bool,
) -> None:
    """Show the GPUs of one or many machines as a live table: job, class, activity, power, memory, health.

    An unknown value is a dash. An agent that does not answer has a line with the reason; its last values are dim. With
    --by, and of more than 100 GPUs (then by node), groups with a problem or an outlier have a line, the others one.
    """
    import msgspec

    from stepscope.workflow.nodes.answers import NodeWatch, answers_of, check_answers, select_devices, unknown_job
    from stepscope.workflow.nodes.top import top_document, top_of

    rack = _rack(rack_from)

    def table(answers: Sequence[NodeAnswer]) -> RenderableType:
        return _table(answers, by, rack, all_groups=all_groups)

    if not once and not as_json:
        with NodeWatch(clients, seconds=timeout_seconds, view=NodeView.TABLE) as watch:
            _show_live(watch, interval, lambda: table(select_devices(watch.answers(), job=job, sick=sick)))
        return
    answers = answers_of(clients, seconds=timeout_seconds, view=None if as_json else NodeView.TABLE)
    report = top_of(answers, job=job, sick=sick)
    if as_json:
        click.echo(msgspec.json.encode(top_document(report)))  # of 1,250 machines 50 MB
    else:
        report_console().print(table(report.nodes))
        for notice in unknown_job(answers, job):
            click.echo(f"stepscope: {notice.message}", err=True)
    check_answers(answers)


_MAX_ROWS = 100
"""Of GPUs and silent agents; more of them are grouped by node."""


def _table(
    answers: Sequence[NodeAnswer], by: str | None, rack: Callable[[NodeAnswer], str], *, all_groups: bool
) -> RenderableType:
    num_rows = sum(len(answer.node.devices) if answer.node else 1 for answer in answers)
    if by is None and num_rows <= _MAX_ROWS:
        from stepscope.cli.terminal.node_table import node_table

        return node_table(answers, time.monotonic())
    from stepscope.cli.terminal.group_table import group_table
    from stepscope.workflow.nodes.groups import GroupBy, groups_of

    group_by = GroupBy(by) if by else GroupBy.NODE
    return group_table(groups_of(answers, group_by, rack), answers, group_by, all_groups=all_groups)


def _show_live(watch: NodeWatch, interval: float, table: Callable[[], RenderableType]) -> None:
    from rich.live import Live

    next_question = 0.0
    with Live(console=report_console(), screen=True, auto_refresh=False) as live:
        while True:
            now = time.monotonic()
            if now >= next_question:
                watch.ask()
                next_question = now + interval
            live.update(table(), refresh=True)
            time.sleep(_REDRAW_SECONDS)
