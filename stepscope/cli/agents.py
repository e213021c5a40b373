"""Which agents does a verb ask, and with what do they let it in?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from stepscope.workflow.agent_client import AgentClient

_FILE = click.Path(path_type=Path, dir_okay=False)
_Function = Callable[..., None]


def asks_agents(function: _Function) -> _Function:
    """Options that say which; the function gets the clients first."""

    @click.option(
        "--agent",
        "urls",
        multiple=True,
        metavar="URL",
        envvar="STEPSCOPE_AGENTS",
        help="Agent to ask; once for each. user:password@ before the host.  [default: http://127.0.0.1:9455]",
    )
    @click.option(
        "--agents",
        "file",
        type=click.Path(path_type=Path, allow_dash=True),
        help="File with one agent a line; -: stdin.",
    )
    @click.option("--token-file", type=_FILE, envvar="STEPSCOPE_TOKEN_FILE", help="File with the agents' token.")
    @click.option("--ca-file", default="", metavar="FILE", help="Certificates to trust instead of the system's.")
    @click.option("--cert-file", default="", metavar="FILE", help="Certificate to show, where agents ask for one.")
    @click.option("--key-file", default="", metavar="FILE", help="Its key.  [default: in the same file]")
    @wraps(function)
    def call(
        urls: tuple[str, ...],
        file: Path | None,
        token_file: Path | None,
        ca_file: str,
        cert_file: str,
        key_file: str,
        **options: Any,
    ) -> None:
        named = [*urls, *(_lines(file) if file else ())]
        function(_clients(named, token_file, ca_file=ca_file, cert_file=cert_file, key_file=key_file), **options)

    return call


def _clients(urls: list[str], token_file: Path | None, **files: str) -> list[AgentClient]:
    from stepscope.workflow.agent_client import DEFAULT_URL, agent_client

    token = ""
    if token_file is not None:
        from stepscope.agent.token_file import token_in

        token = token_in(token_file)
    found = [agent_client(url, token=token, **files) for url in urls or [DEFAULT_URL]]
    return list({str(client): client for client in found}.values())


def _lines(file: Path) -> list[str]:
    from stepscope.core.errors import DataError, from_os_error

    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except OSError as error:
        raise from_os_error(error, "cannot be read", where=str(file)) from None
    except UnicodeDecodeError:
        raise DataError("is no text", where=str(file), what_next="give a file with one agent a line") from None
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    found = [line for line in lines if line]
    if not found:
        raise click.UsageError(f"{file} names no agent")
    return found
