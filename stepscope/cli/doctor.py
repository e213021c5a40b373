"""`stepscope doctor`: what keeps this machine from being measured."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import click

from stepscope.cli.options import FILE, json_option
from stepscope.core.documents.machine_checks import Doctor, DoctorLine, DoctorState
from stepscope.core.errors import UsageError
from stepscope.core.protocol.messages import SOCKET_VARIABLE

_COLOURS = {DoctorState.OK: "green", DoctorState.WARN: "yellow", DoctorState.FAIL: "red"}


@click.command("doctor")
@click.option(
    "--config", "file", type=FILE, envvar="STEPSCOPE_AGENT_CONFIG", help="Read the agent's settings from here."
)
@json_option
def command(file: Path | None, as_json: bool) -> None:
    """Check Python, torch, driver, permissions, limits, NCCL's variables, clock, container and agent.

    Needs no GPU and changes nothing. Exits with status 0 whatever it finds.
    """
    from stepscope.agent.config.configuration import load_configuration
    from stepscope.agent.config.settings import AgentSettings
    from stepscope.workflow.doctor.examination import examine

    wrong = []
    try:
        settings = load_configuration(file, environment=os.environ).settings
    except UsageError as error:
        settings = AgentSettings()
        wrong.append(
            DoctorLine("agent's settings", DoctorState.FAIL, str(error), "run: stepscope agent config check FILE")
        )
    socket = os.environ.get(SOCKET_VARIABLE, settings.training.socket)
    doctor = examine(agent_address=settings.web.listen, agent_socket=socket)
    doctor = replace(doctor, lines=[*doctor.lines, *wrong])
    if as_json:
        click.echo(json.dumps(asdict(doctor), indent=1))
    else:
        _print(doctor)


def _print(doctor: Doctor) -> None:
    width = max(len(line.topic) for line in doctor.lines)
    for line in doctor.lines:
        state = click.style(line.state.value.ljust(4), fg=_COLOURS[line.state])
        click.echo(f"{state}  {line.topic.ljust(width)}  {line.found}")
        if line.what_next:
            click.echo(f"      {' ' * width}  > {line.what_next}")
    counts = {state: sum(line.state is state for line in doctor.lines) for state in DoctorState}
    click.echo(f"{doctor.host}: {counts[DoctorState.FAIL]} fail, {counts[DoctorState.WARN]} warn")
