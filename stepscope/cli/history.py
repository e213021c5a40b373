"""`stepscope history`: record what agents measure, and ask for it."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepscope.cli import CommandGroup
from stepscope.cli.history_source import LOCATION, Opener, history_source, time_options
from stepscope.cli.options import FILE, POSITIVE, agent_source_options, json_option
from stepscope.cli.quantities import Size, Span
from stepscope.cli.terminal.answers import print_report
from stepscope.cli.terminal.history_table import print_history, print_jobs

if TYPE_CHECKING:
    from stepscope.store.history.questions import TimeRange
    from stepscope.workflow.nodes.targets import AgentSources

_log = logging.getLogger(__name__)

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
    for option, value in (("--keep", keep), ("--max-size", max_size)):
        if value == 0:
            raise click.UsageError(f"{option} 0 would delete all that is recorded")
    share_one_heap()  # pages come and go in several threads
    with ExitStack() as stack:
        stack.enter_context(LogQueue())
        stack.enter_context(
            ends_in_time(line="stepscope history: something still hangs; ends without the last samples")
        )
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
    added = dict(_pairs(labels, "--label"))
    if "instance" in added:
        raise click.UsageError("--label instance would make all agents one; it is each agent's address")
    return RecordingPlan(interval, timeout, added)


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
@history_source()
@click.option(
    "--by",
    "groups",
    default="gpu",
    metavar="GROUP,...",
    help="Group by gpu, node, job, rack, user, team, rank, several with commas, or none.",
)
@time_options(last="1h")
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
@json_option
def history_query_command(
    metric: str,
    open_history: Opener,
    groups: str,
    start_ns: int,
    end_ns: int,
    is_now: bool,
    step: float | None,
    labels: tuple[str, ...],
    statistic: str,
    top: int | None,
    with_events: bool,
    as_json: bool,
) -> None:
    """Show METRIC over time: its last, mean, least and largest value of each group, and its course.

    METRIC is a whole name: stepscope_gpu_power_watts. Of a counter, values are its rate a second. Unknown is a dash.
    """
    from stepscope.store.history.questions import Question, Statistic
    from stepscope.workflow.history.query import HistoryRequest, ask_history, depends_on_jobs

    question = Question(metric, _groups(groups), Statistic(statistic), _where(labels))
    of_jobs = top is not None or depends_on_jobs(question.by)
    time = _time_range(start_ns, end_ns, step, is_now=is_now, of_jobs=of_jobs)
    print_report(
        ask_history(open_history(), HistoryRequest(question, time, top, with_events)), print_history, as_json=as_json
    )


@history_command.command("jobs", short_help="List jobs that had GPUs, and their runs.")
@history_source()
@time_options(last="1d")
@click.option("--runs", metavar="DIR", help="Join the runs in this folder with the jobs.")
@json_option
def history_jobs_command(
    open_history: Opener,
    start_ns: int,
    end_ns: int,
    is_now: bool,  # noqa: ARG001  the newest step ends now
    runs: str | None,
    as_json: bool,
) -> None:
    """List the jobs that had GPUs, live ones first, with their users, nodes and runs.

    A job and a run meet where a rank of the run was connected to the agent of a GPU that the job had. With --runs also
    by the scheduler's job that the run recorded, or by a GPU that both had at one time.
    """
    from stepscope.workflow.history.jobs import jobs_of_history

    print_report(jobs_of_history(open_history(), start_ns, end_ns, runs=runs), print_jobs, as_json=as_json)


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


_MINUTE_NS = 60 * 10**9


def _time_range(start_ns: int, end_ns: int, step: float | None, *, is_now: bool, of_jobs: bool) -> TimeRange:
    """The range in whole steps. One until now ends with the step that is not over yet, and steps are at its multiples,
    so that the values of the others stay. Of jobs it ends within a minute: nobody knows who has a GPU later."""
    from stepscope.store.history.questions import TimeRange
    from stepscope.workflow.history.query import step_of

    if step is not None and not step:
        raise click.UsageError("--step must be more than 0 s")
    step_ns = step_of(end_ns - start_ns) if step is None else int(step * 1e9)
    if is_now:
        end_ns += -end_ns % (_MINUTE_NS if of_jobs and step_ns % _MINUTE_NS == 0 else step_ns)
        start_ns -= (start_ns - end_ns) % step_ns
    return TimeRange(start_ns, end_ns, step_ns)
