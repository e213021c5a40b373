"""`stepscope demo`: train, profile and analyze on this machine, print the verdict and check it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.cli.options import FOLDER, json_option, print_document, print_warnings
from stepscope.core.errors import DataError
from stepscope.core.vocabulary import Cause

if TYPE_CHECKING:
    from stepscope.core.documents.analysis import Analysis
    from stepscope.reference_workloads.job import Progress

SIMULATED_LAYER_MS = 80.0
"""Long compared with the real work of a layer on two busy cores, short enough for a demo."""


@dataclass(frozen=True, slots=True)
class _Case:
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
def command(out: str, open_dashboard: bool, port: int, as_json: bool) -> None:
    """Train a small GPT in 3D parallel on this machine, profile it, and print the verdict.

    Without GPUs: 8 processes (TP2 x PP2 x DP2) whose layers sleep instead of computing, with too few
    micro-batches, so that the right verdict is known: a pipeline bubble. With GPUs: the largest case that fits.
    """
    from stepscope.cli.terminal.analysis import print_analysis
    from stepscope.reference_workloads import ParallelPlan, run_workload
    from stepscope.workflow.analyze import analyze

    case = _case()
    click.echo(f"training: {case.what}", err=True)
    plan = ParallelPlan(tp=case.tp, pp=case.pp, dp=case.dp, schedule="1f1b", micro_batches=2 if case.pp > 1 else None)
    trained = run_workload(
        plan, out=out, preset=case.preset, simulate_compute_ms=case.simulate_ms, device=case.device, on_progress=_show
    )
    click.echo(f"loss {trained.first_loss:.3f} -> {trained.last_loss:.3f}; analysing {trained.run_dir}", err=True)
    analysis = analyze([str(trained.run_dir)]).analysis
    if as_json:
        print_document(analysis)
    else:
        print_analysis(analysis)
    print_warnings(analysis.warnings)
    _check(analysis, case, trained.run_dir)
    if open_dashboard:
        _open_dashboard(Path(out), trained.run_dir.name, port)
    else:
        click.echo(f"see it in the browser: {_program()} dashboard --runs {out} --open", err=True)


def _case() -> _Case:
    """The largest case for this machine's GPUs."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus >= 2:
        what = "a GPT cut into 2 pipeline stages on 2 GPUs, 2 micro-batches a step"
        return _Case(what, "two-gpu", 1, 2, 1, "cuda", 0.0, Cause.PIPELINE_BUBBLE)
    if gpus == 1:
        return _Case("a GPT on one GPU", "one-gpu", 1, 1, 1, "cuda", 0.0, None)
    what = "a GPT on TP2 x PP2 x DP2 = 8 CPU processes, simulated compute, 2 micro-batches a step"
    return _Case(what, "tiny", 2, 2, 2, "cpu", SIMULATED_LAYER_MS, Cause.PIPELINE_BUBBLE)


def _show(progress: Progress) -> None:
    click.echo(f"  step {progress.step:3d}  loss {progress.loss:.3f}  {progress.step_ms:7.0f} ms", err=True)


def _check(analysis: Analysis, case: _Case, run: Path) -> None:
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
    import webbrowser

    from stepscope.dashboard.app import serve

    def announce(url: str) -> None:
        page = f"{url.rstrip('/')}/runs/{run_id}"
        click.echo(f"stepscope dashboard: {page}; stop it with Ctrl-C", err=True)
        webbrowser.open(page)

    serve(runs, host="127.0.0.1", port=port, when_listening=announce)


def _program() -> str:
    """`stepscope` as it can be typed here: its path where the name alone would not find it."""
    from shutil import which

    own = Path(sys.prefix) / "bin" / "stepscope"
    found = which("stepscope")
    in_environment = found is not None and Path(found) == own and "VIRTUAL_ENV" in os.environ
    if in_environment or not own.is_file():
        return "stepscope"
    here = Path.cwd()
    return str(own.relative_to(here)) if own.is_relative_to(here) else str(own)
