"""Options that several commands share: JSON, agents, cluster engines."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from stepscope.workflow.nodes.targets import AgentSources


_Function = Callable[..., None]

FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(file_okay=False)
POSITIVE = click.FloatRange(min=0, min_open=True)

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def enters_only_run(function: _Function) -> _Function:
    """Let a command read the only run in the folder that it is given, where that holds nothing else to read."""

    @wraps(function)
    def call(**options: Any) -> None:
        from stepscope.workflow.inputs.paths import OnlyRunError

        while True:
            try:
                return function(**options)
            except OnlyRunError as error:
                click.echo(f"stepscope: {error.folder}: reading the only run in it, {error.run}", err=True)
                options = {name: _replaced(value, error.folder, error.run) for name, value in options.items()}

    return call


def fetches_records(function: _Function) -> _Function:
    """Let a command that reads run directories also take URLs of runs: their records are fetched first."""

    @wraps(function)
    def call(**options: Any) -> None:
        function(**{name: _fetched(value) if name in _PATHS else value for name, value in options.items()})

    return call


_PATHS = ("path", "paths")


def _fetched(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_fetched, value))
    if not isinstance(value, str):
        return value
    from stepscope.workflow.inputs.remote_runs import local_run

    return local_run(value)


def _replaced(value: Any, old: str, new: str) -> Any:
    if isinstance(value, tuple):
        return tuple(new if item == old else item for item in value)
    return new if value == old else value


class _NumberOrAll(click.IntRange):
    """A number from 1 on, or `all`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == "all" else super().convert(value, param, ctx)


def capture_option(*, takes_all: bool = False) -> Callable[[_Function], _Function]:
    """The command-line option --capture."""
    text = "Of several captures of the same processes take number N, 1 being the earliest"
    return click.option(
        "--capture",
        type=_NumberOrAll(min=1) if takes_all else click.IntRange(min=1),
        metavar="N|all" if takes_all else "N",
        help=text + (", or each by itself." if takes_all else ".") + "  [default: the latest]",
    )


def agent_client_options(function: _Function) -> _Function:
    """Add the command-line options that name agents; the command gets their clients first."""

    @agent_source_options
    @wraps(function)
    def call(agents: AgentSources, **options: Any) -> None:
        clients = agents.clients()
        if not clients:
            raise click.UsageError(f"no agent is known to {', '.join(agents.sources)}")
        function(clients, **options)

    return call


def agent_source_options(function: _Function) -> _Function:
    """Add the command-line options that name agents; the command gets where they are first."""

    @click.option(
        "--agent",
        "urls",
        multiple=True,
        metavar="URL",
        envvar="STEPSCOPE_AGENTS",
        help="Ask this agent; repeatable, user:password@ before the host.  [default: http://127.0.0.1:9455]",
    )
    @click.option(
        "--agents",
        "file",
        type=click.Path(path_type=Path, allow_dash=True),
        help="Ask the agents in this file; - for stdin.",
    )
    @click.option(
        "--targets",
        "sources",
        multiple=True,
        metavar="SOURCE",
        envvar="STEPSCOPE_TARGETS",
        help="Ask the agents of a target source: a file or URL of Prometheus' service discovery, slurm:PARTITION, "
        "nodes:gpu[1-8], k8s:NAMESPACE/SERVICE; repeatable.",
    )
    @click.option("--token-file", type=FILE, envvar="STEPSCOPE_TOKEN_FILE", help="Read the agents' token from here.")
    @_tls_file("--ca-file", "Trust these CA certificates instead of the system's.")
    @_tls_file("--cert-file", "Present this client certificate.")
    @_tls_file("--key-file", "Read its key from here.  [default: --cert-file]")
    @wraps(function)
    def call(
        urls: tuple[str, ...],
        file: Path | None,
        sources: tuple[str, ...],
        token_file: Path | None,
        ca_file: str,
        cert_file: str,
        key_file: str,
        **options: Any,
    ) -> None:
        named = (*urls, *(_lines(file) if file else ()))
        files = {"ca_file": ca_file, "cert_file": cert_file, "key_file": key_file}
        function(_agents(named, sources, token_file, files), **options)

    return call


def _tls_file(flag: str, text: str) -> Callable[[_Function], _Function]:
    return click.option(flag, default="", show_default=False, metavar="FILE", help=text)


def _agents(
    urls: tuple[str, ...], sources: tuple[str, ...], token_file: Path | None, files: dict[str, str]
) -> AgentSources:
    from stepscope.workflow.nodes.agent_client import DEFAULT_URL
    from stepscope.workflow.nodes.targets import AgentSources

    token = ""
    if token_file is not None:
        from stepscope.agent.state_directory import read_agent_token

        token = read_agent_token(token_file)
    return AgentSources(urls if urls or sources else (DEFAULT_URL,), sources, {"token": token, **files})


def _lines(file: Path) -> list[str]:
    from stepscope.core.errors import DataError, from_os_error
    from stepscope.store.files import read_text

    try:
        text = sys.stdin.read() if str(file) == "-" else read_text(file)
    except OSError as error:
        raise from_os_error(error, "cannot be read", where=str(file)) from None
    except UnicodeDecodeError:
        what_next = "give a file with one agent per line"
        raise DataError("is not a text file", where=str(file), what_next=what_next) from None
    from stepscope.workflow.nodes.targets import lines_of

    named = lines_of(text)
    if not named:
        raise click.UsageError(f"{file} names no agent")
    return named


def fan_out_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --workers, --engine and --scheduler to a command, which gets them as one `fan_out`."""

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
        help="Read the files with N processes.  [default: by their size]",
    ),
    click.option(
        "--engine",
        type=click.Choice(["local", "dask", "ray"]),
        default="local",
        help="Read the files on this machine, or on a running Dask or Ray cluster.",
    ),
    click.option(
        "--scheduler",
        metavar="ADDRESS",
        help="Use the cluster at tcp://HOST:8786 or ray://HOST:10001.  [default: DASK_SCHEDULER_ADDRESS, RAY_ADDRESS]",
    ),
)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h"""
_KEPT_BYTES = 128 * 1024 * 1024
_LARGEST_ON_HEAP_BYTES = 32 * 1024 * 1024
"""The largest that glibc takes; larger arrays come and go with their pages as before."""


def keep_freed_memory() -> None:
    """Commands: have glibc keep freed memory while one reads traces, here and in forked processes."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_MMAP_THRESHOLD, _LARGEST_ON_HEAP_BYTES)
        set_option(_TRIM_THRESHOLD, _KEPT_BYTES)
