"""`stepscope capture --run RUN --steps N`: profile steps of a running job, without a restart."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from stepscope.cli.options import asks_agents, print_warnings
from stepscope.core.text.numbers import counted

if TYPE_CHECKING:
    from stepscope.workflow.nodes.agent_client import AgentClient
    from stepscope.workflow.nodes.capture import CapturedJob

MAX_SHOWN_RANKS = 16


@click.command("capture")
@asks_agents
@click.option("--run", help="Profile the run of this name or directory.")
@click.option("--job", help="Profile the scheduler's job of this id, or of the name in `stepscope top`.")
@click.option("--steps", type=click.IntRange(min=1), required=True, help="Profile this many optimizer steps.")
@click.option("--ranks", default="all", metavar="0,3|all", help="Profile these ranks.")
@click.option(
    "--start-step", type=click.IntRange(min=0), help="Begin with this step.  [default: the earliest possible]"
)
@click.option("--max-bytes", type=click.IntRange(min=1), help="Limit each rank's compressed trace to this many bytes.")
@click.option("--max-overhead", type=click.FloatRange(min=0), help="Stop when steps slow down by this share, as 0.5.")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=1.0),
    default=600.0,
    help="Give up after this many seconds.",
)
@click.option("--wait/--no-wait", default=True, help="Wait until the traces are written.")
@click.option("--json", "as_json", is_flag=True, help="Print one stepscope.capture/1 document.")
def command(
    agents: list[AgentClient],
    run: str | None,
    job: str | None,
    steps: int,
    ranks: str,
    start_step: int | None,
    max_bytes: int | None,
    max_overhead: float | None,
    timeout_seconds: float,
    wait: bool,
    as_json: bool,
) -> None:
    """Profile steps of a running job through the agents of its nodes, without a restart.

    All ranks begin with the same step. Traces are written into the run's directory. Ctrl-C cancels the capture.
    """
    from stepscope.core.protocol.captures import CaptureOrder, CaptureRequest, CaptureSelector
    from stepscope.workflow.nodes.capture import capture_job

    if run is None and job is None:
        raise click.UsageError("give --run or --job")
    request = CaptureRequest(
        "new",
        steps,
        start_step=start_step,
        ranks=_ranks(ranks),
        max_bytes=max_bytes,
        max_overhead=max_overhead,
        deadline_unix_ns=time.time_ns() + int(timeout_seconds * 1e9),
    )
    order = CaptureOrder(request, CaptureSelector(run, job))
    captured = capture_job(_with_token(agents), order, wait=wait, log=lambda line: click.echo(line, err=True))
    if as_json:
        click.echo(json.dumps(_document(captured)))
    elif wait:
        click.echo("\n".join(_lines(captured)))
    else:
        click.echo(captured.order.request.id)
    print_warnings(captured.warnings)
    if wait:
        _check(captured)


def _with_token(agents: list[AgentClient]) -> list[AgentClient]:
    """The agents with the token of this user's own agent here, where no token file is given."""
    from stepscope.agent.state_directory import TOKEN_FILE, read_agent_token, state_directory

    if agents[0].token:
        return agents
    token = read_agent_token(state_directory() / TOKEN_FILE)
    return [replace(agent, token=token) for agent in agents]


def _ranks(text: str) -> tuple[int, ...] | None:
    if text == "all":
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 8 for part in parts):
        raise click.UsageError(f"--ranks takes numbers with commas, or all, not {text!r}")
    return tuple(sorted({int(part) for part in parts}))


def _lines(captured: CapturedJob) -> list[str]:
    from stepscope.core.errors import printable
    from stepscope.core.text.numbers import size

    shown = captured.ranks[:MAX_SHOWN_RANKS]
    lines = []
    for one in shown:
        rank, progress = one.target.rank, one.progress
        words = [f"rank {'?' if rank is None else rank}", progress.state.value]
        if progress.path and progress.steps:
            first, steps = progress.start_step, progress.steps
            words.append(counted(steps, "step") if first is None else f"steps {first} to {first + steps - 1}")
            words.append(f"{size(progress.bytes)}  {printable(progress.path)}")
        words += [f"stopped by {progress.stopped_by}"] if progress.stopped_by else []
        words += [printable(progress.reason)] if progress.reason else []
        lines.append("  ".join(words))
    if len(captured.ranks) > len(shown):
        lines.append(f"and {counted(len(captured.ranks) - len(shown), 'rank')} more")
    if captured.folder:
        lines.append(f"stepscope analyze {shlex.quote(printable(captured.folder))}")
    return lines


def _document(captured: CapturedJob) -> dict[str, object]:
    from stepscope.core.protocol.captures import CAPTURE_SCHEMA, report_document

    return {
        "schema": CAPTURE_SCHEMA,
        "id": captured.order.request.id,
        "state": captured.state,
        "folder": captured.folder,
        "agents": [{"url": url, **report_document(report)} for url, report in captured.reports.items()],
        "warnings": [asdict(warning) for warning in captured.warnings],
    }


def _check(captured: CapturedJob) -> None:
    """Check that every requested rank has left a trace.

    Raises:
        DataError: one has not.
    """
    from stepscope.core.errors import DataError
    from stepscope.core.protocol.captures import CaptureState

    request = captured.order.request
    where = f"capture {request.id}"
    if request.ranks is not None and captured.missing_ranks:
        raise DataError("not all requested ranks are there", where=where)
    without = [one for one in captured.ranks if one.progress.state is not CaptureState.DONE]
    if without:
        rank, progress = without[0].target.rank, without[0].progress
        num_without = f"{len(without)} of {counted(len(captured.ranks), 'rank')}"
        what = f"{num_without} left no trace; rank {rank}: {progress.state}"
        raise DataError(f"{what}, {progress.reason}" if progress.reason else what, where=where)
