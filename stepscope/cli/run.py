"""`stepscope run`: an unmodified training command whose processes measure their steps."""

from __future__ import annotations

import os
from pathlib import Path

import click

from stepscope.core.errors import UsageError

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
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the run into this folder of runs, which all ranks must reach.",
)
@click.option("--run", metavar="NAME", help="Name the run.  [default: from the scheduler, torchrun or the time]")
@click.option(
    "--first", type=click.IntRange(min=0), help="Profile first at this step, from 0.  [default: 4, or --every]"
)
@click.option("--active", type=click.IntRange(min=1), default=3, help="Profile this many steps per capture.")
@click.option("--warmup", type=click.IntRange(min=0), default=1, help="Warm up the profiler for so many steps.")
@click.option("--every", type=click.IntRange(min=1), metavar="N", help="Capture again every N steps.  [default: once]")
@click.option("--ranks", default="auto", help="Write traces on these ranks: auto, all, or 0,1,2.")
@click.option("--with-stack", is_flag=True, help="Record Python stacks, which costs far more than the rest.")
@click.pass_context
def command(
    ctx: click.Context,
    out: Path,
    run: str | None,
    first: int | None,
    active: int,
    warmup: int,
    every: int | None,
    ranks: str,
    with_stack: bool,
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
    if first is None:
        first = every or DEFAULT_SCHEDULE.first
    schedule = Schedule(first=first, warmup=min(warmup, first), active=active, period=every)
    options = RunOptions(str(out.absolute()), run, _ranks(ranks), schedule, with_stack)
    replace_process(ctx.meta[_COMMAND], launch_environment(options, os.environ))


def _ranks(text: str) -> str | list[int]:
    if text in {"auto", "all"}:
        return text
    try:
        return [int(rank) for rank in text.split(",")]
    except ValueError:
        raise UsageError(f"{text!r} is neither auto nor all nor rank numbers", where="--ranks") from None
