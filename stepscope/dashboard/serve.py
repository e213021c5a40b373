"""How does the web app listen? On a socket of our own, so that the address is known and a taken port is one line."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn

from stepscope.core.errors import DataError, UsageError
from stepscope.dashboard.app import create_app
from stepscope.dashboard.security import LOOPBACK_NAMES, is_loopback
from stepscope.store.runs import RunStore


def serve(
    root: Path,
    *,
    host: str,
    port: int,
    insecure: bool = False,
    allowed_hosts: Sequence[str] = (),
    when_listening: Callable[[str], None],
) -> None:
    """Serve the runs under `root` until SIGINT or SIGTERM.

    Args:
        root: directory of runs.
        host: address to bind.
        port: port; 0 takes a free one.
        insecure: allow an address that other machines can reach, though nobody is asked who they are.
        allowed_hosts: further host names that requests may bear; on a loopback address only its own names else.
        when_listening: called with the URL once the socket listens.

    Raises:
        UsageError: the address is not loopback and `insecure` is not set, or it cannot be bound.
        DataError: root is no directory.
    """
    check_address(host, insecure=insecure)
    if not root.is_dir():
        raise DataError("is no directory", where=str(root), what_next="name a directory of runs with --runs")
    names = [*LOOPBACK_NAMES, host.lower(), *(name.lower() for name in allowed_hosts)] if is_loopback(host) else None
    app = create_app(RunStore(root), allowed_hosts=names)
    with _bind(host, port) as listener:
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, ws="none")
        server = uvicorn.Server(config)
        when_listening(_url(host, listener.getsockname()[1]))
        server.run(sockets=[listener])


def check_address(host: str, *, insecure: bool) -> None:
    """Refuse an address that others can reach, as there is no login.

    Raises:
        UsageError: the address is not loopback and `insecure` is not set.
    """
    if not insecure and not is_loopback(host):
        raise UsageError(
            f"binding {host} lets everyone who reaches this machine read all runs, and there is no login",
            where="--host",
            what_next="use an SSH tunnel to 127.0.0.1 or a proxy with a login, or pass --insecure",
        )


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"cannot listen on {host} port {port} ({error})",
            what_next="choose another port with --port, or 0 for a free one",
        ) from error


def _url(host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"
