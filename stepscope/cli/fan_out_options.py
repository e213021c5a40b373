"""Which options say where files are read? The same ones on every verb that reads traces."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click


def fan_out_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds --workers, --engine and --scheduler; the command gets them as one `fan_out`."""

    @wraps(command)
    def with_fan_out(*, workers: int | None, engine: str, scheduler: str | None, **others: Any) -> None:
        from stepscope.cli.freed_memory import keep_freed_memory
        from stepscope.workflow.fan_out import Engine, FanOut

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
