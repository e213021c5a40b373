"""`stepscope status`: what is wrong with the GPUs of machines, and what to do."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from stepscope.cli.options import asks_agents
from stepscope.core.errors import printable
from stepscope.core.hardware.health import Severity
from stepscope.core.text.numbers import counted

if TYPE_CHECKING:
    from stepscope.core.documents.node import StatusFinding, StatusReport
    from stepscope.workflow.nodes.agent_client import AgentClient

_FOUND = 1


@click.command("status")
@asks_agents
@click.option("--json", "as_json", is_flag=True, help="Print one stepscope.status/1 document.")
@click.pass_context
def command(context: click.Context, clients: list[AgentClient], as_json: bool) -> None:
    """List what is wrong with the GPUs of one or many machines, and what to do about it.

    Exits with status 0 when there are at most notes (info), 1 when anything is wrong or an agent does not answer,
    4 when no agent answers.
    """
    from stepscope.workflow.nodes.answers import answers_of, check_answers
    from stepscope.workflow.nodes.status import status_of

    answers = answers_of(clients)
    report = status_of(answers)
    click.echo(json.dumps(asdict(report)) if as_json else "\n".join(_lines(report)))
    check_answers(answers)
    context.exit(_FOUND if _wrong(report) else 0)


def _lines(report: StatusReport) -> list[str]:
    num_gpus = sum(node.num_gpus for node in report.nodes)
    wrong = _wrong(report)
    num_notes = len(report.findings) - len(wrong)
    parts = [counted(len(wrong), "finding")] if report.findings else ["nothing is wrong"]
    if wrong:
        sick = {(finding.agent, finding.gpu) for finding in wrong if finding.gpu}
        parts.append(f"{counted(len(sick), 'GPU')} not well")
    if num_notes:
        parts.append(counted(num_notes, "note"))
    head = f"{counted(len(report.nodes), 'machine')}, {counted(num_gpus, 'GPU')}: "
    return [head + ", ".join(parts), *map(_line, report.findings)]


def _wrong(report: StatusReport) -> list[StatusFinding]:
    return [finding for finding in report.findings if finding.severity != Severity.INFO]


def _line(finding: StatusFinding) -> str:
    place = finding.host or finding.agent.partition("://")[2]
    if finding.gpu:
        place = f"{place} GPU {finding.gpu}" + (f" ({finding.uuid})" if finding.uuid else "")
    line = f"{finding.severity}: {place}: {finding.message}"
    return printable(f"{line}; {finding.action}" if finding.action else line)
