"""`stepscope agent`: the daemon of a GPU node."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import click

from stepscope.agent.config import Configuration
from stepscope.cli.agent_config import config, configured

_log = logging.getLogger(__name__)


@click.group("agent")
def command() -> None:
    """Read this machine's GPUs and serve what they say to Prometheus."""


command.add_command(config)


@command.command("run")
@configured()
def run(configuration: Configuration) -> None:
    """Read GPUs and host, and serve /metrics, until SIGTERM or Ctrl-C.

    It starts without any GPU or driver, too, and says what is missing.
    """
    from stepscope.agent.assembly import assembled
    from stepscope.agent.service import serve

    parts = assembled(configuration)
    logging.basicConfig(level=logging.WARNING, format="stepscope agent: %(message)s")
    _log.setLevel(logging.INFO)
    try:
        with _set_by_sigterm() as stop:
            serve(parts, stop=stop, say=_log.info)  # a log that cannot be written ends nothing
    finally:
        _leave_log()


@command.command("check")
@configured("gpus", "dcgm")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def check(configuration: Configuration, as_json: bool) -> None:
    """Say what can be collected here, what not, and why; takes some seconds."""
    from stepscope.agent.assembly import sources_of
    from stepscope.agent.check import check_machine
    from stepscope.cli.check_report import check_lines

    logging.basicConfig(level=logging.WARNING, format="stepscope agent: %(message)s")
    found = check_machine(sources_of(configuration))
    click.echo(json.dumps(asdict(found), indent=1) if as_json else "\n".join(check_lines(found)))


@contextmanager
def _set_by_sigterm() -> Iterator[threading.Event]:
    """An event that SIGTERM sets, while SIGHUP is answered with a line; afterwards they do what they did before."""
    stop = threading.Event()
    line = "goes on after SIGHUP; the web config is read whenever it changes, all else when the agent starts"
    handlers = {signal.SIGTERM: lambda *_: stop.set(), signal.SIGHUP: lambda *_: _log.info(line)}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave_log() -> None:
    """What the log did not take is dropped; else Python, which tries again at its end, ends with another code."""
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stderr.fileno())
