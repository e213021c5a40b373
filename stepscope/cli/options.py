"""Options that several commands share: the agents to ask, and where trace files are read."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from stepscope.workflow.nodes.agent_client import AgentClient


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
    from stepscope.workflow.nodes.agent_client import DEFAULT_URL, agent_client

    token = ""
    if token_file is not None:
        from stepscope.agent.state_directory import read_token

        token = read_token(token_file)
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


def fan_out_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds --workers, --engine and --scheduler; the command gets them as one `fan_out`."""

    @wraps(command)
    def with_fan_out(*, workers: int | None, engine: str, scheduler: str | None, **others: Any) -> None:
        from stepscope.workflow.fan_out.engine import Engine, FanOut

        keep_freed_memory()
        command(fan_out=FanOut(Engine(engine), workers, scheduler), **others)

    for option in reversed(_OPTIONS):
        with_fan_out = option(with_fan_out)
    return with_fan_out


_OPTIONS = (
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        metavar="N",
        help="Processes that read the files.  [default: what pays]",
    ),
    click.option(
        "--engine",
        type=click.Choice(["local", "dask", "ray"]),
        default="local",
        show_default=True,
        help="Read the files here, or on a Dask or Ray cluster that is running.",
    ),
    click.option(
        "--scheduler",
        metavar="ADDRESS",
        help="The cluster: tcp://HOST:8786, ray://HOST:10001.  [default: DASK_SCHEDULER_ADDRESS, RAY_ADDRESS]",
    ),
)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h"""
_KEPT_BYTES = 128 * 1024 * 1024
_LARGEST_ON_HEAP_BYTES = 32 * 1024 * 1024
"""The largest that glibc takes; larger arrays come and go with their pages as before."""


def keep_freed_memory() -> None:
    """For the rest of this process and those it forks; nothing happens where the C library is another."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_MMAP_THRESHOLD, _LARGEST_ON_HEAP_BYTES)
        set_option(_TRIM_THRESHOLD, _KEPT_BYTES)
