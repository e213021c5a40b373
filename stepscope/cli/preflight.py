"""`stepscope preflight`: whether this node's GPUs are fit for a job."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.core.documents.machine_checks import Outcome

if TYPE_CHECKING:
    from stepscope.workflow.preflight.phases import Progress

_EXPECTED = "STEPSCOPE_AGENT__HEALTH__EXPECTED_GPUS"
"""The agent's setting, where the environment has it."""


@click.command("preflight")
@click.option("--quick", is_flag=True, help="Shorter runs: a rough answer in about 20 s.")
@click.option("--checks", metavar="A,B", help="Only these: state, memory, matmul, results, host, peers, all_reduce.")
@click.option("--gpus", metavar="0,2-3", help="Only these: indices as nvidia-smi shows them, or UUIDs, also of MIG.")
@click.option("--slurm-gpus", metavar="NAMES", help="Only these, as Slurm names them: $SLURM_JOB_GPUS of a prolog.")
@click.option(
    "--expected-gpus",
    type=click.IntRange(min=0),
    default=0,
    envvar=_EXPECTED,
    show_envvar=True,
    help="How many whole GPUs the node has: fewer fail. 0: as many as there are.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(1.0, 3600.0),
    default=60.0,
    show_default=True,
    help="Seconds that one check may take on one GPU; then the GPU counts as hung.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--junit", type=click.Path(dir_okay=False, path_type=Path), help="Write a JUnit file, one test case a check."
)
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    default="cuda",
    show_default=True,
    help="cpu: try the same code on the CPU with gloo.",
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
    """Measure this node's GPUs and compare them with what such GPUs give: a gate before a job.

    Memory, matrix products and their results, PCIe, NVLink, an all-reduce, and what the driver tells of errors. It ends
    with 1 when a GPU failed, with 3 when there is none to measure, with 4 when the driver does not answer.
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
        raise UsageError(f"it does not go with {other}", where="--slurm-gpus", what_next="leave one of them out")
    if junit is not None and not junit.absolute().parent.is_dir():
        raise UsageError("there is no such folder", where=str(junit.parent), what_next="make it, or name another file")
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
        for notice in preflight.warnings:
            click.echo(f"warning: {notice.message}", err=True)
    has_failed = preflight.outcome is Outcome.FAIL
    if junit is not None:
        try:
            write_whole(junit, checks_as_junit(preflight))
        except DataError as error:
            if not has_failed:
                raise
            click.echo(f"stepscope: {error}", err=True)  # that a GPU is unfit counts more
    if has_failed:
        click.get_current_context().exit(1)


@contextmanager
def _progress() -> Iterator[Progress]:
    """One line on stderr that tells what is measured now, where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    try:
        yield lambda what: click.echo(f"\r\x1b[K{what} ...", err=True, nl=False)
    finally:
        click.echo("\r\x1b[K", err=True, nl=False)
