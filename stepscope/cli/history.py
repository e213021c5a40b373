"""`stepscope history`: record what agents measure, and ask for it."""

from __future__ import annotations

import logging
import os
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepscope.cli import CommandGroup
from stepscope.cli.options import FILE, POSITIVE, agent_source_options, json_option
from stepscope.cli.quantities import SIZE, SPAN
from stepscope.cli.terminal.answers import print_report

if TYPE_CHECKING:
    from stepscope.core.documents.history import HistoryReport
    from stepscope.workflow.nodes.targets import AgentSources

_log = logging.getLogger(__name__)

LOCATION = "stepscope-history"
"""Folder of the history unless one is named."""
_history_option = click.option(
    "--history",
    "location",
    envvar="STEPSCOPE_HISTORY",
    default=LOCATION,
    metavar="DIR|URL",
    help="Keep the history in this directory or at this fsspec URL.",
)


@click.group("history", cls=CommandGroup)
def history_command() -> None:
    """Record what agents measure, and ask for it."""


@history_command.command("run", short_help="Record the metrics of agents until SIGTERM.")
@_history_option
@agent_source_options
@click.option("--interval", type=click.FloatRange(1.0, 300.0), default=15.0, help="Scrape each agent every so many seconds.")
@click.option(
    "--timeout",
    type=POSITIVE,
    help="Give a scrape up after this many seconds, less than --interval.  [default: two thirds of --interval]",
)
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Add this label to all series; repeatable.")
@click.option("--keep", type=SPAN, default="14d", help="Keep samples as they came for this long: 36h, 14d.")
@click.option("--max-size", type=SIZE, help="Delete the oldest samples when the history has this size: 500GB.")
@click.option("--listen", metavar="HOST:PORT", help="Serve the recorder's own metrics at /metrics here.")
@click.option("--web-config-file", type=FILE, help="Read TLS certificate and users of --listen from here.")
@click.option("--insecure", is_flag=True, help="Let --listen be reachable from other machines without TLS and users.")
def history_run_command(
    agents: AgentSources,
    location: str,
    interval: float,
    timeout: float | None,
    labels: tuple[str, ...],
    keep: float,
    max_size: int | None,
    listen: str | None,
    web_config_file: Path | None,
    insecure: bool,
) -> None:
    """Scrape the /metrics of agents and keep it as metric history, until SIGTERM or Ctrl-C.

    An agent that does not answer is a gap with its reason, never a repeated value. Health events and verdicts of
    running jobs are kept as events.
    """
    from stepscope.agent.daemon import LogQueue, ends_in_time
    from stepscope.cli.agent import set_by_sigterm
    from stepscope.workflow.history.recording import recording

    plan = _plan(interval, timeout, labels)
    with ExitStack() as stack:
        stack.enter_context(LogQueue())
        stack.enter_context(ends_in_time())
        stop = stack.enter_context(set_by_sigterm("goes on after SIGHUP; targets are read again every minute"))
        logging.basicConfig(level=logging.WARNING, format="stepscope history: %(message)s")
        logging.getLogger("stepscope.workflow.history").setLevel(logging.INFO)
        _log.setLevel(logging.INFO)
        recorder = stack.enter_context(recording(location, agents, plan, keep_seconds=keep, max_bytes=max_size))
        if listen is not None:
            _serve(stack, recorder, listen, web_config_file, insecure=insecure)
        recorder.run(stop)


def _plan(interval: float, timeout: float | None, labels: tuple[str, ...]) -> Any:
    from stepscope.workflow.history.service import DEADLINE_SHARE, RecordingPlan

    timeout = DEADLINE_SHARE * interval if timeout is None else timeout
    if timeout >= interval:
        raise click.UsageError(f"--timeout {timeout:g} must be less than --interval {interval:g}")
    return RecordingPlan(interval, timeout, dict(_pairs(labels, "--label")))


def _pairs(texts: tuple[str, ...], option: str) -> list[tuple[str, str]]:
    pairs = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or not name.isascii() or name.startswith("__"):
            raise click.UsageError(f"{option} takes NAME=VALUE, not {text!r}")
        pairs.append((name, value))
    return pairs


def _serve(stack: ExitStack, recorder: Any, listen: str, web_config_file: Path | None, *, insecure: bool) -> None:
    """Serve the recorder's own metrics until the stack is closed."""
    from http import HTTPStatus

    from stepscope.agent.web.routes import Access, Reply, Route, text_reply
    from stepscope.agent.web.server import AgentServer, listen_address_of
    from stepscope.agent.web.web_config import WebConfigReloader
    from stepscope.workflow.history.own_page import CONTENT_TYPE, recording_page

    guard = WebConfigReloader(web_config_file)
    address = listen_address_of(listen, insecure=insecure, config=guard.config())

    def page(_: object) -> Reply:
        body = recording_page(recorder.status()).encode()
        return Reply(HTTPStatus.OK, body, {"Content-Type": CONTENT_TYPE})

    routes = (
        Route("GET", "/metrics", page),
        Route("GET", "/healthz", lambda _: text_reply(HTTPStatus.OK, "ok\n"), access=Access.PUBLIC),
    )
    server = stack.enter_context(AgentServer(address, routes, guard))
    _log.info("%s/metrics serves the recorder's own metrics", server.url)
