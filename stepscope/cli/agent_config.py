"""`stepscope agent config`: what is the agent told to do, and who said so? And the options that say so."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from stepscope.agent.config import Configuration, load
from stepscope.agent.config.keys import Key
from stepscope.agent.config.settings import KEYS
from stepscope.agent.config.showing import as_document, as_toml

_Function = Callable[..., None]
_FILE = click.Path(path_type=Path, dir_okay=False)
_FILE_HELP = "Settings in TOML; docs/agent.md lists them."
_CLICK_TYPES: dict[type, Any] = {int: click.INT, float: click.FLOAT, str: click.STRING}
_OF_FLAGS = {key.parameter: path for path, key in KEYS.items() if key.flag}


def configured(*sections: str) -> Callable[[_Function], _Function]:
    """Options for the settings that have a flag, and for the file; the function gets a Configuration first.

    Args:
        sections: whose settings get an option; none named: all.
    """

    def decorate(function: _Function) -> _Function:
        @wraps(function)
        def call(file: Path | None, **options: Any) -> None:
            given = {_OF_FLAGS[name]: options.pop(name) for name in list(options) if name in _OF_FLAGS}
            flags = {path: None if value == () else value for path, value in given.items()}
            function(load(file, environment=os.environ, flags=flags), **options)

        for key in reversed(KEYS.values()):
            if key.flag and (not sections or key.section in sections):
                call = _option(key)(call)
        return click.option("--config", "file", type=_FILE, envvar="STEPSCOPE_AGENT_CONFIG", help=_FILE_HELP)(call)

    return decorate


def _option(key: Key) -> Callable[..., Any]:
    told = f"{key.help} [default: {key.default}]" if key.default not in ("", False, ()) else key.help
    if key.type is bool:
        return click.option(f"{key.flag}/--no-{key.flag.removeprefix('--')}", key.parameter, default=None, help=told)
    if key.choices:
        choices = click.Choice([choice for choice in key.choices if choice])
        return click.option(key.flag, key.parameter, type=choices, help=told)
    kind = _CLICK_TYPES.get(key.type, click.STRING)
    is_list = key.type is tuple
    metavar = key.metavar or None
    return click.option(key.flag, key.parameter, type=kind, metavar=metavar, multiple=is_list, help=told)


@click.group("config")
def config() -> None:
    """Show or check the agent's settings."""


@config.command("show")
@click.option("--origin", "with_origin", is_flag=True, help="Say of each setting who said so.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@configured()
def show(configuration: Configuration, with_origin: bool, as_json: bool) -> None:
    """Show the settings that `run` would have with the same options and environment, without passwords."""
    text = (
        json.dumps(as_document(configuration), indent=1) if as_json else as_toml(configuration, with_origin=with_origin)
    )
    click.echo(text)


@config.command("check")
@click.argument("file", type=_FILE)
def check(file: Path) -> None:
    """Check a file of settings: ends with 0, or with 2 and a line on the first that is wrong."""
    from stepscope.agent.assembly import assembled

    assembled(load(file))
    click.echo(f"{file}: these settings can be used")
