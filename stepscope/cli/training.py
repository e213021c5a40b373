"""Verbs that start training, or show its runs: run, demo, dashboard."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import webbrowser
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.cli.options import FOLDER, agent_source_options, json_option
from stepscope.cli.terminal.answers import print_report
from stepscope.core.documents.run_directory import KeepTraces
from stepscope.core.errors import DataError, UsageError
from stepscope.core.vocabulary import Cause

if TYPE_CHECKING:
    from stepscope.core.documents.analysis import Analysis
    from stepscope.reference_workloads.job import TrainingProgress
    from stepscope.workflow.nodes.targets import AgentSources


_COMMAND = "stepscope.command"


class _Wrapper(click.Command):
    """Leaves everything after `--` to the command that is run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        place = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = args[place + 1 :]
        if not ctx.meta[_COMMAND] and not {"-h", "--help"} & set(args):
            raise click.UsageError("give the command after --, as in: stepscope run -- torchrun train.py", ctx)
        return super().parse_args(ctx, args[:place])


@click.command("run", cls=_Wrapper, options_metavar="[OPTIONS] -- COMMAND...")
@click.option(
    "--out",
    default="runs",
    type=FOLDER,
    help="Write the run into this folder of runs, which all ranks must reach, or upload it below this URL.",
)
@click.option("--run", metavar="NAME", help="Name the run.  [default: from the scheduler, torchrun or the time]")
@click.option(
    "--first",
    type=click.IntRange(min=0),
    help="Profile first at this step, from 0.  [default: --every, else 24 on a GPU and 4 without]",
)
@click.option("--active", type=click.IntRange(min=1), default=3, help="Profile this many steps per capture.")
@click.option("--warmup", type=click.IntRange(min=0), default=1, help="Warm up the profiler for so many steps.")
@click.option("--every", type=click.IntRange(min=1), metavar="N", help="Capture again every N steps.  [default: once]")
@click.option("--ranks", default="auto", help="Write traces on these ranks: auto, all, or 0,1,2.")
@click.option("--with-stack", is_flag=True, help="Record Python stacks, which costs far more than the rest.")
@click.option(
    "--reduce",
    type=click.Choice(["view", "off"]),
    help="Make the view of each trace beside training, and remove traces that --keep-traces does not keep.  "
    "[default: STEPSCOPE_REDUCE, else off]",
)
@click.option(
    "--keep-traces",
    type=click.Choice([str(each) for each in KeepTraces]),
    help="With --reduce view, keep these traces.  [default: STEPSCOPE_KEEP_TRACES, else outliers]",
)
@click.pass_context
def run_command(
    ctx: click.Context,
    out: str,
    run: str | None,
    first: int | None,
    active: int,
    warmup: int,
    every: int | None,
    ranks: str,
    with_stack: bool,
    reduce: str | None,
    keep_traces: str | None,
) -> None:
    """Run an unmodified training command and measure its steps.

    Every process of it that trains with torch writes into one run directory, as with stepscope.profile. The command
    replaces this process, so signals and exit code are its own. STEPSCOPE_DISABLE=1 turns measuring off.
    """
    from stepscope.training.captures.schedule import DEFAULT_SCHEDULE, Schedule
    from stepscope.training.run.identity import check_run_name
    from stepscope.zero_code.launch import RunOptions, launch_environment, replace_process

    if run is not None:
        try:
            check_run_name(run)
        except ValueError as error:
            raise UsageError(str(error), where="--run") from None
    schedule = None
    if (first, every, active, warmup) != (None, None, DEFAULT_SCHEDULE.active, DEFAULT_SCHEDULE.warmup):
        start = (every or DEFAULT_SCHEDULE.first) if first is None else first
        schedule = Schedule(first=start, warmup=min(warmup, start), active=active, period=every)
    out = out if "://" in out else str(Path(out).absolute())
    options = RunOptions(out, run, _ranks(ranks), schedule, with_stack, reduce, keep_traces)
    replace_process(ctx.meta[_COMMAND], launch_environment(options, os.environ))


def _ranks(text: str) -> str | list[int]:
    if text in {"auto", "all"}:
        return text
    try:
        return [int(rank) for rank in text.split(",")]
    except ValueError:
        raise UsageError(f"{text!r} is neither auto nor all nor rank numbers", where="--ranks") from None


SIMULATED_LAYER_MS = 80.0
"""Long compared with the real work of a layer on two busy cores, short enough for a demo."""


@dataclass(frozen=True, slots=True)
class _DemoCase:
    """Workload of the demo, and the cause that its analysis must find; None where any is right."""

    what: str
    preset: str
    tp: int
    pp: int
    dp: int
    device: str
    simulate_ms: float
    expected: Cause | None


@click.command("demo")
@click.option("--out", default="runs", type=FOLDER, help="Write the run into this folder of runs.")
@click.option("--open", "open_dashboard", is_flag=True, help="Then serve the dashboard and open the run in a browser.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8050, help="Port of the dashboard of --open; 0 for a free one."
)
@json_option
def demo_command(out: str, open_dashboard: bool, port: int, as_json: bool) -> None:
    """Train a small GPT in 3D parallel on this machine, profile it, and print the verdict.

    Without GPUs: 8 processes (TP2 x PP2 x DP2) whose layers sleep instead of computing, with too few
    micro-batches, so that the right verdict is known: a pipeline bubble. With GPUs: the largest case that fits.
    """
    from stepscope.cli.terminal.analysis import print_analysis
    from stepscope.reference_workloads import ParallelPlan, run_workload
    from stepscope.workflow.analyze import analyze

    case = _demo_case()
    click.echo(f"training: {case.what}", err=True)
    plan = ParallelPlan(tp=case.tp, pp=case.pp, dp=case.dp, schedule="1f1b", micro_batches=2 if case.pp > 1 else None)
    trained = run_workload(
        plan,
        out=out,
        preset=case.preset,
        simulate_compute_ms=case.simulate_ms,
        device=case.device,
        on_progress=_show_progress,
    )
    click.echo(f"loss {trained.first_loss:.3f} -> {trained.last_loss:.3f}; analysing {trained.run_dir}", err=True)
    analysis = analyze([str(trained.run_dir)]).analysis
    print_report(analysis, print_analysis, as_json=as_json)
    _check_verdict(analysis, case, trained.run_dir)
    if open_dashboard:
        _open_dashboard(Path(out), trained.run_dir.name, port)
    else:
        click.echo(f"see it in the browser: {_program()} dashboard --runs {out} --open", err=True)


def _demo_case() -> _DemoCase:
    """The largest case for this machine's GPUs."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus >= 2:
        what = "a GPT cut into 2 pipeline stages on 2 GPUs, 2 micro-batches a step"
        return _DemoCase(what, "two-gpu", 1, 2, 1, "cuda", 0.0, Cause.PIPELINE_BUBBLE)
    if gpus == 1:
        return _DemoCase("a GPT on one GPU", "one-gpu", 1, 1, 1, "cuda", 0.0, None)
    what = "a GPT on TP2 x PP2 x DP2 = 8 CPU processes, simulated compute, 2 micro-batches a step"
    return _DemoCase(what, "tiny", 2, 2, 2, "cpu", SIMULATED_LAYER_MS, Cause.PIPELINE_BUBBLE)


def _show_progress(progress: TrainingProgress) -> None:
    click.echo(f"  step {progress.step:3d}  loss {progress.loss:.3f}  {progress.step_ms:7.0f} ms", err=True)


def _check_verdict(analysis: Analysis, case: _DemoCase, run: Path) -> None:
    """Compare the verdict with the built-in cause.

    Raises:
        DataError: they differ.
    """
    cause = analysis.verdict.cause
    if case.expected is None:
        return
    if cause is not case.expected:
        raise DataError(
            f"the demo built in {case.expected.replace('_', ' ')}, the verdict is {cause.replace('_', ' ')}",
            where=str(run),
            what_next="run it again on a quieter machine, and report it if it stays",
        )
    click.echo(f"checked: {cause.replace('_', ' ')} is what this run was built to have", err=True)


def _open_dashboard(runs: Path, run_id: str, port: int) -> None:
    from stepscope.dashboard.app import serve_dashboard

    def announce(url: str) -> None:
        page = f"{url.rstrip('/')}/runs/{run_id}"
        click.echo(f"stepscope dashboard: {page}; stop it with Ctrl-C", err=True)
        webbrowser.open(page)

    serve_dashboard(runs, host="127.0.0.1", port=port, when_listening=announce)


def _program() -> str:
    """`stepscope` as it can be typed here: its path where the name alone would not find it."""
    own = Path(sys.prefix) / "bin" / "stepscope"
    found = shutil.which("stepscope")
    in_environment = found is not None and Path(found) == own and "VIRTUAL_ENV" in os.environ
    if in_environment or not own.is_file():
        return "stepscope"
    here = Path.cwd()
    return str(own.relative_to(here)) if own.is_relative_to(here) else str(own)


@click.command("dashboard")
@click.option("--runs", "root", type=click.Path(path_type=Path), default=Path("."), help="Show these runs, or one run.")
@click.option("--host", default="127.0.0.1", help="Listen on this address.")
@click.option("--port", type=click.IntRange(0, 65535), default=8050, help="Listen on this port; 0 for a free one.")
@click.option("--open", "open_browser", is_flag=True, help="Open the page in a browser.")
@click.option("--insecure", is_flag=True, help="Allow an address that other machines can reach; there is no login.")
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Accept this host name in requests; repeatable.",
)
@click.option(
    "--history",
    metavar="DIR|URL",
    help="Show this history, and record the metrics of agents there meanwhile, as `stepscope history run` does. "
    "A Prometheus-compatible server at http://HOST is only asked.",
)
@click.option("--record/--no-record", default=True, help="With --history: --no-record where another process records.")
@agent_source_options
@click.option(
    "--interval",
    type=click.FloatRange(1.0, 300.0),
    default=15.0,
    help="With --history: scrape each agent every so many seconds.",
)
def dashboard_command(
    agents: AgentSources,
    root: Path,
    host: str,
    port: int,
    open_browser: bool,
    insecure: bool,
    allowed_hosts: tuple[str, ...],
    history: str | None,
    record: bool,
    interval: float,
) -> None:
    """Serve the web app of runs and their verdicts; with --history also of the cluster, its jobs and events."""
    from stepscope.dashboard.app import serve_dashboard
    from stepscope.dashboard.queries import FleetQueries
    from stepscope.workflow.history.opening import is_server, open_history

    def announce(url: str) -> None:
        click.echo(f"stepscope dashboard: {url} shows the runs in {root.resolve()}; stop it with Ctrl-C", err=True)
        if open_browser:
            webbrowser.open(url)

    with ExitStack() as stack:
        records = history is not None and record and not is_server(history)
        more_metrics = _record(stack, history, agents, interval) if history is not None and records else str
        fleet = None
        if history is not None:
            fleet = FleetQueries(partial(open_history, history), location=history, interval=interval, runs=root)
        serve_dashboard(
            root,
            host=host,
            port=port,
            insecure=insecure,
            allowed_hosts=allowed_hosts,
            fleet=fleet,
            more_metrics=more_metrics,
            when_listening=announce,
        )


def _record(stack: ExitStack, history: str, agents: AgentSources, interval: float) -> Callable[[], str]:
    """Record agents until the stack is closed, also by SIGTERM; the recorder's own metrics."""
    from stepscope.workflow.history.own_page import recording_page
    from stepscope.workflow.history.recording import recording_beside
    from stepscope.workflow.history.service import DEADLINE_SHARE, RecordingPlan

    logging.basicConfig(level=logging.WARNING, format="stepscope dashboard: %(message)s")
    logging.getLogger("stepscope.workflow.history").setLevel(logging.INFO)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # which uvicorn raises again once it has ended
    recorder = stack.enter_context(
        recording_beside(history, agents, RecordingPlan(interval, DEADLINE_SHARE * interval))
    )
    return lambda: recording_page(recorder.status())
