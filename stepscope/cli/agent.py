"""`stepscope agent`: the daemon of a GPU node, its check of the available metrics, and its settings."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any

import click

from stepscope.agent.config.configuration import (
    Configuration,
    configuration_document,
    configuration_toml,
    load_configuration,
)
from stepscope.agent.config.settings import KEYS, Key
from stepscope.cli import CommandGroup
from stepscope.cli.options import FILE, json_option

_Function = Callable[..., None]
_FILE_HELP = "Read settings from this TOML file; `stepscope agent config show` lists them."
_CLICK_TYPES: dict[type, Any] = {int: click.INT, float: click.FLOAT, str: click.STRING}
_PATH_OF_FLAG = {key.parameter: path for path, key in KEYS.items() if key.flag}


def agent_options(*sections: str) -> Callable[[_Function], _Function]:
    """Add command-line options for the agent's settings; the command gets a Configuration first.

    Args:
        sections: their settings get an option; all where none is named.
    """

    def decorate(function: _Function) -> _Function:
        @wraps(function)
        def call(file: Path | None, **options: Any) -> None:
            values = {_PATH_OF_FLAG[name]: options.pop(name) for name in list(options) if name in _PATH_OF_FLAG}
            flags = {path: None if value == () else value for path, value in values.items()}
            function(load_configuration(file, environment=os.environ, flags=flags), **options)

        for key in reversed(KEYS.values()):
            if key.flag and (not sections or key.section in sections):
                call = _option(key)(call)
        return click.option("--config", "file", type=FILE, envvar="STEPSCOPE_AGENT_CONFIG", help=_FILE_HELP)(call)

    return decorate


def _option(key: Key) -> Callable[..., Any]:
    text = f"{key.help} [default: {key.default}]" if key.default not in ("", False, ()) else key.help
    if key.type is bool:
        return click.option(f"{key.flag}/--no-{key.flag.removeprefix('--')}", key.parameter, default=None, help=text)
    if key.choices:
        choices = click.Choice([choice for choice in key.choices if choice])
        return click.option(key.flag, key.parameter, type=choices, help=text)
    kind = _CLICK_TYPES.get(key.type, click.STRING)
    is_list = key.type is tuple
    metavar = key.metavar or None
    return click.option(key.flag, key.parameter, type=kind, metavar=metavar, multiple=is_list, help=text)


@click.group("config", cls=CommandGroup)
def config_command() -> None:
    """Show or check the agent's settings."""


@config_command.command("show", short_help="Show the settings that `run` would use.")
@click.option("--origin", "with_origin", is_flag=True, help="Show where each value comes from.")
@json_option
@agent_options()
def config_show_command(configuration: Configuration, with_origin: bool, as_json: bool) -> None:
    """Show the settings that `run` would use with the same options and environment, without passwords."""
    text = (
        json.dumps(configuration_document(configuration), indent=1)
        if as_json
        else configuration_toml(configuration, with_origin=with_origin)
    )
    click.echo(text)


@config_command.command("check", short_help="Check a settings file.")
@click.argument("file", type=FILE)
def config_check_command(file: Path) -> None:
    """Check a settings file; exit with status 2 and one line on the first wrong setting."""
    from stepscope.agent.service import Agent

    Agent(load_configuration(file))
    click.echo(f"{file}: these settings can be used")


_log = logging.getLogger(__name__)


@click.group("agent", cls=CommandGroup)
def agent_command() -> None:
    """Collect this machine's GPU metrics and serve them to Prometheus."""


agent_command.add_command(config_command)


@agent_command.command("run", short_help="Serve the metrics of GPUs and host.")
@agent_options()
def agent_run_command(configuration: Configuration) -> None:
    """Collect metrics of GPUs and host and serve /metrics, until SIGTERM or Ctrl-C.

    Starts without a GPU or driver, too, and reports what is missing.
    """
    from stepscope.agent.daemon import LogQueue, ends_in_time
    from stepscope.agent.service import Agent
    from stepscope.core.process import share_one_heap

    share_one_heap()
    line = "goes on after SIGHUP; the web config is read whenever it changes, all else when the agent starts"
    with LogQueue() as log, ends_in_time(), set_by_sigterm(lambda: _log.info(line)) as stop:
        agent = Agent(configuration)
        logging.basicConfig(level=logging.WARNING, format="stepscope agent: %(message)s")
        _log.setLevel(logging.INFO)
        agent.serve(stop=stop, say=_log.info, log_lines_dropped=lambda: log.num_dropped)


@agent_command.command("check", short_help="Show which metrics can be collected, and why not.")
@agent_options("gpus", "dcgm")
@json_option
def agent_check_command(configuration: Configuration, as_json: bool) -> None:
    """Show which metrics can be collected here, which cannot, and why; takes some seconds."""
    from stepscope.agent.service import agent_sources_of
    from stepscope.agent.sources import check_agent_sources
    from stepscope.cli.terminal.agent_check import agent_check_lines

    logging.basicConfig(level=logging.WARNING, format="stepscope agent: %(message)s")
    found = check_agent_sources(agent_sources_of(configuration))
    click.echo(json.dumps(asdict(found), indent=1) if as_json else "\n".join(agent_check_lines(found)))


@agent_command.command("install", short_help="Install the agent as a service of this machine.")
@click.option("--systemd", "for_systemd", is_flag=True, help="Write a systemd unit, its user and the settings.")
@click.option(
    "--prefix",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/"),
    help="Write below this folder, as for an image of a machine.",
)
@click.option("--dry-run", is_flag=True, help="Print the files, and write nothing.")
def agent_install_command(for_systemd: bool, prefix: Path, dry_run: bool) -> None:
    """Write the files that run the agent as a service of this machine, and say what to run next.

    The unit starts this installation of stepscope. The settings have the number of GPUs and the dcgm-exporter found
    here; settings that are there already are kept. Starts nothing.
    """
    from stepscope.agent import installation

    if not for_systemd:
        raise click.UsageError("name the service manager: --systemd")
    machine = installation.look_at_machine()
    contents = installation.service_files(machine)
    if dry_run:
        click.echo("\n".join(f"# {prefix / name}\n{text}" for name, text in contents.items()), nl=False)
    else:
        installation.write_service_files(contents, prefix, say=click.echo)
        click.echo("Next:")
        for line in installation.next_commands(machine, prefix):
            click.echo(f"  {line}")
    for note in machine.notes:
        click.echo(f"stepscope: {note}", err=True)


@contextmanager
def set_by_sigterm(on_hangup: Callable[[], None]) -> Iterator[threading.Event]:
    """An event that SIGTERM sets; SIGHUP calls a function. The previous handlers are restored afterwards."""
    stop = threading.Event()
    handlers = {signal.SIGTERM: lambda *_: stop.set(), signal.SIGHUP: lambda *_: on_hangup()}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
