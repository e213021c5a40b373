"""`stepscope preflight`: a gate on this node's GPUs before a job."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.cli.options import FILE, json_option, print_warnings
from stepscope.core.documents.machine_checks import Outcome

if TYPE_CHECKING:
    from stepscope.workflow.preflight.phases import Progress

_EXPECTED = "STEPSCOPE_AGENT__HEALTH__EXPECTED_GPUS"
"""The agent's setting of the same meaning."""


@click.command("preflight")
@click.option("--quick", is_flag=True, help="Measure for a shorter time: a rough answer in about 20 s.")
@click.option("--checks", metavar="A,B", help="Only run: state, memory, matmul, results, host, peers, all_reduce.")
@click.option("--gpus", metavar="0,2-3", help="Check these GPUs only, by index or UUID, also of MIG.  [default: all]")
@click.option("--slurm-gpus", metavar="NAMES", help="Check these GPUs only, as Slurm names them ($SLURM_JOB_GPUS).")
@click.option(
    "--expected-gpus",
    type=click.IntRange(min=0),
    default=0,
    envvar=_EXPECTED,
    show_envvar=True,
    help="Fail if the node has fewer whole GPUs; 0 for no such check.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(1.0, 3600.0),
    default=60.0,
    help="Seconds after which a check on a GPU counts as hung.",
)
@json_option
@click.option("--junit", type=FILE, help="Also write a JUnit file with one test case per check.")
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    default="cuda",
    help="Check CUDA GPUs, or try the same code on the CPU with gloo.",
)
def command(
    quick: bool,
    checks: str | None,
    gpus: str | None,
    slurm_gpus: str | None,
    expected_gpus: int,
    timeout: float,
    as_json: bool,
    junit: Path | None,
    device: str,
) -> None:
    """Measure this node's GPUs and compare them with the figures of their model: a gate before a job.

    Checks memory, matrix products and their results, PCIe, NVLink, an all-reduce, and the driver's error counters.
    Exits with status 1 when a GPU failed, 3 when there is none to measure, 4 when the driver does not answer.
    """
    from stepscope.cli.terminal.preflight import report_lines
    from stepscope.core.documents.machine_checks import CheckGroup
    from stepscope.core.errors import DataError, UsageError
    from stepscope.store.files import check_writable, write_whole
    from stepscope.workflow.junit import checks_as_junit
    from stepscope.workflow.preflight.phases import run_preflight
    from stepscope.workflow.preflight.request import (
        PreflightRequest,
        driver_seconds_of,
        gpus_of,
        groups_of,
        slurm_gpus_of,
    )

    if slurm_gpus is not None and (gpus is not None or device != "cuda"):
        other = "--gpus" if gpus is not None else f"--device {device}"
        raise UsageError(f"cannot be used with {other}", where="--slurm-gpus", what_next="leave one of them out")
    if junit is not None and not junit.absolute().parent.is_dir():
        raise UsageError(
            "there is no such folder", where=str(junit.parent), what_next="create it, or give another file"
        )
    if junit is not None:
        check_writable(junit)
    request = PreflightRequest(
        device_type=device,
        quick=quick,
        groups=frozenset(CheckGroup) if checks is None else groups_of(checks),
        gpus=None if gpus is None else gpus_of(gpus),
        slurm_gpus=None if slurm_gpus is None else slurm_gpus_of(slurm_gpus),
        expected_gpus=expected_gpus,
        seconds=timeout,
        driver_seconds=driver_seconds_of(timeout),
    )
    with _progress() as on_progress:
        preflight = run_preflight(request, on_progress=on_progress)
    if as_json:
        click.echo(json.dumps(asdict(preflight), indent=1))
    else:
        for line, colour in report_lines(preflight):
            click.secho(line, fg=colour)
        print_warnings(preflight.warnings)
    has_failed = preflight.outcome is Outcome.FAIL
    if junit is not None:
        try:
            write_whole(junit, checks_as_junit(preflight))
        except DataError as error:
            if not has_failed:
                raise
            click.echo(f"stepscope: {error}", err=True)  # an unfit GPU counts more
    if has_failed:
        click.get_current_context().exit(1)


@contextmanager
def _progress() -> Iterator[Progress]:
    """A line on a terminal's stderr with the current measurement."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    try:
        yield lambda what: click.echo(f"\r\x1b[K{what} ...", err=True, nl=False)
    finally:
        click.echo("\r\x1b[K", err=True, nl=False)
