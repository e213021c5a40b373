"""`stepscope history`: record what agents measure, and ask for it."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepscope.cli import CommandGroup
from stepscope.cli.options import FILE, POSITIVE, agent_source_options, json_option
from stepscope.cli.quantities import Size, Span
from stepscope.cli.terminal.answers import print_report
from stepscope.cli.terminal.history_table import print_history
from stepscope.core.errors import UsageError

if TYPE_CHECKING:
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
@click.option(
    "--interval", type=click.FloatRange(1.0, 300.0), default=15.0, help="Scrape each agent every so many seconds."
)
@click.option(
    "--timeout",
    type=POSITIVE,
    help="Give a scrape up after this many seconds, less than --interval.  [default: two thirds of --interval]",
)
@click.option(
    "--label", "labels", multiple=True, metavar="NAME=VALUE", help="Add this label to all series; repeatable."
)
@click.option("--keep", type=Span(), default="14d", help="Keep samples as they came for this long: 36h, 14d.")
@click.option("--max-size", type=Size(), help="Delete the oldest samples when the history has this size: 500GB.")
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
    from stepscope.core.process import share_one_heap
    from stepscope.workflow.history.recording import recording

    plan = _plan(interval, timeout, labels)
    share_one_heap()  # pages come and go in several threads
    with ExitStack() as stack:
        stack.enter_context(LogQueue())
        stack.enter_context(ends_in_time())
        hangup = "goes on after SIGHUP; targets are read again every minute"
        stop = stack.enter_context(set_by_sigterm(lambda: _log.info(hangup)))
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
        Route("GET", "/healthz", lambda _: text_reply(HTTPStatus.OK, "ok"), is_open=True),
    )
    server = stack.enter_context(AgentServer(address, routes, Access(None, guard), guard))
    _log.info("%s/metrics serves the recorder's own metrics", server.url)


@history_command.command("query", short_help="Show a metric over time, by GPU, node, job, rack or user.")
@click.argument("metric")
@click.option(
    "--history",
    "location",
    envvar="STEPSCOPE_HISTORY",
    default=LOCATION,
    metavar="DIR|URL",
    help="Ask the history in this directory, at this fsspec URL, or in the Prometheus-compatible server at http://HOST.",
)
@click.option(
    "--by",
    "groups",
    default="gpu",
    metavar="GROUP,...",
    help="Group by gpu, node, job, rack, user, rank, several with commas, or none.",
)
@click.option(
    "--start", metavar="TIME", help="Begin at this time, as 2026-12-01T08:00Z.  [default: --last before --end]"
)
@click.option("--end", metavar="TIME", help="End at this time.  [default: now]")
@click.option(
    "--last", type=Span(), default="1h", metavar="SPAN", help="Begin this long before the end: 90min, 12h, 30d."
)
@click.option("--step", type=Span(), metavar="SPAN", help="Give a value for every so long.  [default: about 60 values]")
@click.option(
    "--where", "labels", multiple=True, metavar="LABEL=VALUE", help="Only series with this label; repeatable."
)
@click.option(
    "--statistic",
    type=click.Choice(["mean", "min", "max", "sum", "count"]),
    default="mean",
    help="Make one value of the series of a group by this.",
)
@click.option(
    "--top",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show the N groups that deviate most from the median of their job.",
)
@click.option("--events", "with_events", is_flag=True, help="Show gaps, health events and verdicts of this time too.")
@click.option(
    "--token-file", type=FILE, envvar="STEPSCOPE_TOKEN_FILE", help="Read a Prometheus server's token from here."
)
@click.option("--ca-file", default="", show_default=False, metavar="FILE", help="Trust these CA certificates with it.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="Send this header to it, as X-Scope-OrgID=TENANT; repeatable.",
)
@json_option
def history_query_command(
    metric: str,
    location: str,
    groups: str,
    start: str | None,
    end: str | None,
    last: float,
    step: float | None,
    labels: tuple[str, ...],
    statistic: str,
    top: int | None,
    with_events: bool,
    token_file: Path | None,
    ca_file: str,
    headers: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show METRIC over time: its last, mean, least and largest value of each group, and its course.

    METRIC is a whole name: stepscope_gpu_power_watts. Of a counter, values are its rate a second. Unknown is a dash.
    """
    from stepscope.store.history.questions import Question, Statistic
    from stepscope.workflow.history.opening import open_history
    from stepscope.workflow.history.query import HistoryRequest, ask_history

    token = ""
    if token_file is not None:
        from stepscope.agent.state_directory import read_agent_token

        token = read_agent_token(token_file)
    question = Question(metric, _groups(groups), Statistic(statistic), _where(labels))
    request = HistoryRequest(question, _time_range(start, end, last, step), top, with_events)
    sent = dict(_header(text) for text in headers)
    history = open_history(location, token=token, ca_file=ca_file, headers=sent)
    print_report(ask_history(history, request), print_history, as_json=as_json)


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--header takes NAME=VALUE, not {text!r}")
    return name, value


def _where(texts: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    values: dict[str, tuple[str, ...]] = {}
    for name, value in _pairs(texts, "--where"):
        values[name] = (*values.get(name, ()), value)
    return values


def _groups(text: str) -> Any:
    from stepscope.store.history.questions import GroupBy

    names = [name.strip() for name in text.split(",")]
    if names == ["none"]:
        return ()
    known = [str(one) for one in GroupBy]
    for name in names:
        if name not in known:
            raise click.UsageError(f"--by takes {', '.join(known)} or none, not {name!r}")
    return tuple(dict.fromkeys(map(GroupBy, names)))


def _time_range(start: str | None, end: str | None, last: float, step: float | None) -> Any:
    """The range in whole steps. One until now ends with the step that is not over yet, and steps are at its multiples,
    so that the values of the others stay."""
    from stepscope.store.history.questions import TimeRange
    from stepscope.workflow.history.query import step_of

    end_ns = time.time_ns() if end is None else _moment(end, "--end")
    start_ns = end_ns - int(last * 1e9) if start is None else _moment(start, "--start")
    if step is not None and not step:
        raise click.UsageError("--step must be more than 0 s")
    if start_ns >= end_ns:
        raise UsageError(f"{start or 'the start'} is not before {end or 'now'}", what_next="check --start and --end")
    step_ns = step_of(end_ns - start_ns) if step is None else int(step * 1e9)
    if start is None and end is None:
        end_ns += -end_ns % step_ns
        start_ns -= start_ns % step_ns
    return TimeRange(start_ns, end_ns, step_ns)


def _moment(text: str, option: str) -> int:
    try:
        parsed = datetime.fromisoformat(text)
        return int((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()) * 10**9
    except (ValueError, OverflowError):
        raise click.UsageError(f"{option} takes a time such as 2026-12-01T08:00Z (UTC), not {text!r}") from None
