"""Verbs that check this machine: doctor, preflight."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.cli.options import FILE, json_option
from stepscope.cli.terminal.answers import print_warnings
from stepscope.core.documents import machine_checks
from stepscope.core.errors import DataError, UsageError
from stepscope.core.protocol.messages import SOCKET_VARIABLE
from stepscope.core.text.numbers import listed, number_runs
from stepscope.workflow.junit import gpus_of_check

if TYPE_CHECKING:
    from stepscope.workflow.preflight.phases import Progress


_DOCTOR_COLOURS = {
    machine_checks.DoctorState.OK: "green",
    machine_checks.DoctorState.WARN: "yellow",
    machine_checks.DoctorState.FAIL: "red",
}


@click.command("doctor")
@click.option(
    "--config", "file", type=FILE, envvar="STEPSCOPE_AGENT_CONFIG", help="Read the agent's settings from here."
)
@json_option
def doctor_command(file: Path | None, as_json: bool) -> None:
    """Check Python, torch, driver, permissions, limits, NCCL's variables, clock, container and agent.

    Needs no GPU and changes nothing. Exits with status 0 whatever it finds.
    """
    from stepscope.agent.config.configuration import load_configuration
    from stepscope.agent.config.settings import AgentSettings
    from stepscope.workflow.doctor import examine

    wrong = []
    try:
        settings = load_configuration(file, environment=os.environ).settings
    except UsageError as error:
        settings = AgentSettings()
        wrong.append(
            machine_checks.DoctorLine(
                "agent's settings",
                machine_checks.DoctorState.FAIL,
                str(error),
                "run: stepscope agent config check FILE",
            )
        )
    socket = os.environ.get(SOCKET_VARIABLE, settings.training.socket)
    doctor = examine(agent_address=settings.web.listen, agent_socket=socket)
    doctor = replace(doctor, lines=[*doctor.lines, *wrong])
    if as_json:
        click.echo(json.dumps(asdict(doctor), indent=1))
    else:
        width = max(len(line.topic) for line in doctor.lines)
        for line in doctor.lines:
            state = click.style(line.state.value.ljust(4), fg=_DOCTOR_COLOURS[line.state])
            click.echo(f"{state}  {line.topic.ljust(width)}  {line.found}")
            if line.what_next:
                click.echo(f"      {' ' * width}  > {line.what_next}")
        states = [line.state.value for line in doctor.lines]
        click.echo(f"{doctor.host}: {states.count('fail')} fail, {states.count('warn')} warn")


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
def preflight_command(
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
    from stepscope.store.files import check_writable, write_whole
    from stepscope.workflow.junit import checks_as_junit
    from stepscope.workflow.preflight import workers as preflight_request
    from stepscope.workflow.preflight.phases import run_preflight

    if slurm_gpus is not None and (gpus is not None or device != "cuda"):
        other = "--gpus" if gpus is not None else f"--device {device}"
        raise UsageError(f"cannot be used with {other}", where="--slurm-gpus", what_next="leave one of them out")
    if junit is not None and not junit.absolute().parent.is_dir():
        raise UsageError(
            "there is no such folder", where=str(junit.parent), what_next="create it, or give another file"
        )
    if junit is not None:
        check_writable(junit)
    request = preflight_request.PreflightRequest(
        device_type=device,
        quick=quick,
        groups=frozenset(machine_checks.CheckGroup) if checks is None else preflight_request.parse_check_groups(checks),
        gpus=None if gpus is None else preflight_request.parse_gpu_names(gpus),
        slurm_gpus=None if slurm_gpus is None else preflight_request.parse_slurm_gpus(slurm_gpus),
        expected_gpus=expected_gpus,
        seconds=timeout,
        driver_seconds=preflight_request.driver_seconds_of(timeout),
    )
    with _progress() as on_progress:
        preflight = run_preflight(request, on_progress=on_progress)
    if as_json:
        click.echo(json.dumps(asdict(preflight), indent=1))
    else:
        for line, colour in _preflight_lines(preflight):
            click.secho(line, fg=colour)
        print_warnings(preflight.warnings)
    has_failed = preflight.outcome is machine_checks.Outcome.FAIL
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


Line = tuple[str, str | None]
"""Text, and its colour where it has one."""

_OUTCOME_COLOURS = {
    machine_checks.Outcome.FAIL: "red",
    machine_checks.Outcome.WARN: "yellow",
    machine_checks.Outcome.PASS: "green",
    machine_checks.Outcome.SKIPPED: None,
}
MAX_NAMES = 4
_SCALES = {"bytes/s": (1e9, "GB/s"), "FLOP/s": (1e12, "TFLOP/s")}


def _preflight_lines(preflight: machine_checks.Preflight) -> list[Line]:
    """Lines of the report of a preflight."""
    names = sorted({gpu.name for gpu in preflight.gpus if gpu.name}) or ["GPU of unknown name"]
    what = f"{len(preflight.gpus)} x {' and '.join(names)}" if preflight.gpus else "no GPU"
    versions = ", ".join(f"{name} {version}" for name, version in preflight.versions.items())
    head = f"{preflight.host}: {what}" + (f" ({versions})" if versions else "")
    lines: list[Line] = [(head, None), ("", None)]
    lines += _check_table(preflight.checks)
    bad = [
        check
        for check in preflight.checks
        if check.outcome in (machine_checks.Outcome.WARN, machine_checks.Outcome.FAIL)
    ]
    skipped = _skipped(preflight.checks)
    if bad:
        lines.append(("", None))
        lines += [(_sentence(check), _OUTCOME_COLOURS[check.outcome]) for check in sorted(bad, key=_worst_first)]
    if skipped:
        lines += [("", None), *((line, None) for line in skipped)]
    return [*lines, ("", None), (_preflight_answer(preflight), _OUTCOME_COLOURS[preflight.outcome])]


def _check_table(checks: Sequence[machine_checks.CheckResult]) -> list[Line]:
    rows: list[tuple[tuple[str, ...], str | None]] = [(("check", "result", "measured", "expected"), None)]
    for name in dict.fromkeys(check.check for check in checks):
        of_name = [check for check in checks if check.check == name]
        outcome = machine_checks.worst(check.outcome for check in of_name)
        if outcome is machine_checks.Outcome.SKIPPED:
            continue
        rows.append(((name, outcome.value, _range(of_name), _expected(of_name)), _OUTCOME_COLOURS[outcome]))
    widths = [max(len(row[column]) for row, _ in rows) for column in range(4)]
    return [
        ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), colour)
        for row, colour in rows
    ]


def _range(checks: Sequence[machine_checks.CheckResult]) -> str:
    values = [check.value for check in checks if check.value is not None and check.unit]
    if not values:
        return ""
    unit = next(check.unit for check in checks if check.unit)
    low, high = _scaled_number(min(values), unit), _scaled_number(max(values), unit)
    return f"{low if low == high else f'{low} to {high}'} {_SCALES[unit][1]}"


def _expected(checks: Sequence[machine_checks.CheckResult]) -> str:
    check = next((check for check in checks if check.unit and check.expected is not None), None)
    if check is None or check.expected is None or check.fail_below is None:
        return ""
    return f"{_scaled_number(check.expected, check.unit)} (fails below {_scaled_number(check.fail_below, check.unit)})"


def _scaled_number(value: float, unit: str) -> str:
    scaled = value / _SCALES[unit][0]
    return f"{scaled:,.0f}" if scaled >= 100 else f"{scaled:.1f}" if scaled >= 10 else f"{scaled:.3g}"


def _sentence(check: machine_checks.CheckResult) -> str:
    measured = (
        f" {_scaled_number(check.value, check.unit)} {_SCALES[check.unit][1]}," if check.value and check.unit else ""
    )
    who = f"{gpus_of_check(check)}  " if check.gpus else ""
    return f"{check.outcome.value.upper()}  {who}{check.check}:{measured} {check.detail}"


def _worst_first(check: machine_checks.CheckResult) -> bool:
    return check.outcome is not machine_checks.Outcome.FAIL


def _skipped(checks: Sequence[machine_checks.CheckResult]) -> list[str]:
    """Skipped checks, one line per reason."""
    reasons: dict[str, list[machine_checks.CheckResult]] = {}
    for check in checks:
        if check.outcome is machine_checks.Outcome.SKIPPED:
            reasons.setdefault(check.detail, []).append(check)
    lines = []
    for why, skipped in reasons.items():
        names = listed(dict.fromkeys(check.check for check in skipped), MAX_NAMES)
        lines.append("  ".join(filter(None, ("skipped", _gpus(skipped), names))) + f": {why}")
    return lines


def _gpus(checks: Sequence[machine_checks.CheckResult]) -> str:
    """GPUs of the checks, such as "gpu 0-1, 3"; empty where none has an index."""
    indices = sorted({index for check in checks for index in check.gpus})
    return f"gpu {number_runs(indices, dash='-')}" if indices else ""


def _preflight_answer(preflight: machine_checks.Preflight) -> str:
    total, seconds = len(preflight.gpus), f"{preflight.seconds:.0f} s"
    if preflight.outcome is machine_checks.Outcome.FAIL:
        failed = [check for check in preflight.checks if check.outcome is machine_checks.Outcome.FAIL]
        absent = "" if all(check.gpus for check in failed) else "a GPU that is not here"
        return f"preflight failed: {' and '.join(filter(None, (_gpus(failed), absent)))} ({seconds})"
    if preflight.outcome is machine_checks.Outcome.WARN:
        warned = [gpu.index for gpu in preflight.gpus if gpu.outcome is machine_checks.Outcome.WARN]
        return f"preflight passed with warnings: gpu {number_runs(warned, dash='-')} ({seconds})"
    return f"preflight passed: {total} of {total} ({seconds})"
