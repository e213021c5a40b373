"""`stepscope health`: events that agents keep, acknowledged and ended by operators."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from stepscope.cli import CommandGroup
from stepscope.cli.nodes import with_token
from stepscope.cli.options import agent_client_options
from stepscope.cli.terminal.answers import print_warnings
from stepscope.core.documents.health import (
    NODE,
    AgentHealth,
    HealthList,
    NodeHealth,
    health_document,
    health_list_document,
)
from stepscope.core.errors import printable
from stepscope.core.hardware.devices import device_in
from stepscope.core.hardware.health import HealthEvent, HealthState
from stepscope.core.text.numbers import counted, moment

if TYPE_CHECKING:
    from stepscope.workflow.nodes.agent_client import AgentClient


@click.group("health", cls=CommandGroup)
def health_command() -> None:
    """List health events of GPUs and machines, acknowledge them, or set a GPU healthy."""


@health_command.command("list", short_help="List open health events, with their ids.")
@agent_client_options
@click.option("--all", "with_ended", is_flag=True, help="List events that are over, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one stepscope.health-list/1 document.")
def list_command(clients: list[AgentClient], with_ended: bool, as_json: bool) -> None:
    """List the open health events of machines, with who acknowledged them and why.

    Exits with status 4 when no agent answers.
    """
    from stepscope.workflow.nodes.health import health_of, open_health

    listed = health_of(clients)
    if not with_ended:
        listed = open_health(listed)
    click.echo(json.dumps(health_list_document(listed)) if as_json else "\n".join(_lines(listed)))
    if not as_json:
        print_warnings(listed.warnings)


_Function = Callable[..., None]


def _note_options(function: _Function) -> _Function:
    """Add the options of an operator's note: agents, who, why."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the machine's stepscope.health/1 document."),
        click.option("--why", required=True, metavar="TEXT", help="Note why, for those who read it later."),
        click.option("--by", required=True, metavar="WHO", help="Note who says so."),
    ):
        function = option(function)
    return agent_client_options(function)


@health_command.command("ack", short_help="Acknowledge an open event, so that it raises no alert.")
@_note_options
@click.argument("event")
def ack_command(clients: list[AgentClient], event: str, by: str, why: str, as_json: bool) -> None:
    """Acknowledge the open event of this id: it stays open, and alerts and `status` leave it out.

    Needs the agent's token. Exits with status 3 when no open event has this id.
    """
    from stepscope.workflow.nodes.health import acknowledge_event

    health = acknowledge_event(_one(clients), event, by=by, why=why)
    _print_note(health, as_json=as_json, line=f"{event} is acknowledged by {by}: {why}")


@health_command.command("set-healthy", short_help="End the open events of a GPU or machine.")
@_note_options
@click.argument("target", metavar="GPU|NODE")
def set_healthy_command(clients: list[AgentClient], target: str, by: str, why: str, as_json: bool) -> None:
    """End all open events of a GPU (its index or UUID), or of the machine and all its GPUs (`node`, or its name).

    New evidence begins another event: a further XID, a larger count, or the same again after it was good. A GPU with
    a condition that stands, such as one that does not answer, stays as it is. Needs the agent's token. Exits with
    status 3 when there is no such GPU, or a condition of it stands.
    """
    from stepscope.workflow.nodes.health import set_healthy

    health = set_healthy(_one(clients), target, by=by, why=why)
    _print_note(health, as_json=as_json, line=f"{target} is set healthy by {by}: {why}")
    if target in (NODE, health.host):
        for event in (one for one in health.events if one.ended_ns is None):
            line = f"stepscope: stays open, as its condition stands: {_event_line(health.host, event)}"
            click.echo(printable(line), err=True)


def _one(clients: list[AgentClient]) -> AgentClient:
    if len(clients) != 1:
        raise click.UsageError("this is for the agent of one machine; name it with --agent")
    return with_token(clients)[0]


def _print_note(health: NodeHealth, *, as_json: bool, line: str) -> None:
    click.echo(json.dumps(health_document(health)) if as_json else printable(f"{health.host}: {line}"))
    if not health.is_kept:
        click.echo("stepscope: the agent could not keep this; it is lost when the agent ends, see its log", err=True)


def _lines(listed: HealthList) -> Iterator[str]:
    known = [node for node in listed.nodes if node.health is not None]
    num_open = sum(event.ended_ns is None for node in known for event in _events(node))
    head = f"{counted(len(known), 'machine')}, {counted(num_open, 'open event')}"
    num_sick = sum(gpu.health.state is HealthState.FAILED for node in known if node.health for gpu in node.health.gpus)
    yield f"{head}, {counted(num_sick, 'GPU')} failed" if num_sick else head
    for node in known:
        for event in _events(node):
            assert node.health is not None
            yield printable(_event_line(node.health.host, event))


def _events(node: AgentHealth) -> tuple[HealthEvent, ...]:
    return node.health.events if node.health else ()


def _event_line(host: str, event: HealthEvent) -> str:
    device = device_in(dict(event.labels))
    others = " ".join(f"{name} {value}" for name, value in event.labels)
    whose = f" {device}" if device.index else f" {others}" if others else ""
    times = f"since {moment(event.first_ns)}" if event.ended_ns is None else _span(event)
    parts = [f"{event.severity}: {host}{whose}: {event.message}", f"{times}, seen {counted(event.count, 'time')}"]
    if event.acknowledged is not None:
        parts.append(f"acknowledged by {event.acknowledged.by}: {event.acknowledged.why}")
    if event.set_healthy is not None:
        parts.append(f"set healthy by {event.set_healthy.by}: {event.set_healthy.why}")
    if event.ended_ns is None and event.acknowledged is None:
        parts.append(event.action.line)
    return f"{event.id or event.code}  {'; '.join(parts)}"


def _span(event: HealthEvent) -> str:
    return f"{moment(event.first_ns)} to {moment(event.ended_ns)}"
