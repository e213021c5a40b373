"""`stepscope workload suite --preset two-gpu -o DIR`: are faults that we built in found, and their gains predicted?"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click


@click.command("suite")
@click.option(
    "--preset", default="tiny", show_default=True, help="tiny or tiny-3d (CPU), one-gpu, two-gpu, four-gpu, node."
)
@click.option("--cases", metavar="A[,B...]", help="Only these cases, by name or pattern (ddp-*).  [default: all]")
@click.option(
    "--budget-minutes",
    type=click.FloatRange(min=0, min_open=True),
    help="Begin no further run that would end later; the same command goes on from there.",
)
@click.option(
    "--keep-traces",
    type=click.Choice(["whole", "trimmed", "none"]),
    default="whole",
    show_default=True,
    help="What stays of the traces; trimmed: a small fixture a case in DIR/fixtures.",
)
@click.option("--again", is_flag=True, help="Repeat runs that failed.")
@click.option("--list", "only_list", is_flag=True, help="List the cases and run nothing.")
@click.option("--require-accuracy", type=click.FloatRange(0, 1), metavar="RATIO", help="End with 1 below it.")
@click.option("--device", default="auto", show_default=True, help="auto (the preset's), cpu or cuda.")
@click.option(
    "-o", "--out", required=False, type=click.Path(file_okay=False), metavar="DIR", help="The suite's folder."
)
@click.option("--json", "as_json", is_flag=True, help="Print the stepscope.suite/1 document.")
def command(out: str | None, only_list: bool, as_json: bool, **options: Any) -> None:
    """Train runs with one known fault each and their controls, analyse them, and score the verdicts.

    Writes DIR/confusion.md and confusion.json. A second call goes on where the first stopped. Misses are data: the
    exit code is 0 when all ran, 1 only when --require-accuracy is missed.
    """
    from stepscope.reference_workloads.suite.cases import find_cases

    chosen = options["cases"].split(",") if options["cases"] else []
    cases = find_cases(options["preset"], device=options["device"], only=[name.strip() for name in chosen])
    if only_list:
        for case in cases:
            click.echo(f"{case.name}  (control: {case.control.name})")
        return
    if out is None:
        raise click.UsageError("Missing option '-o' / '--out'.")
    _run(cases, Path(out), options, as_json=as_json)


def _run(cases: list[Any], out: Path, options: dict[str, Any], *, as_json: bool) -> None:
    from stepscope.cli.progress import run_progress
    from stepscope.reference_workloads.suite.report import (
        TEXT_FILE,
        as_markdown,
        encode_report,
        make_report,
        write_report,
    )
    from stepscope.reference_workloads.suite.results import SuiteFolder
    from stepscope.reference_workloads.suite.run import SuiteOptions, SuiteRuns, run_suite
    from stepscope.reference_workloads.suite.score import score

    folder = SuiteFolder(out)
    minutes = options["budget_minutes"]
    suite_options = SuiteOptions(
        budget_seconds=None if minutes is None else 60.0 * minutes,
        keep_traces=options["keep_traces"],
        again=options["again"],
    )
    with run_progress("suite") as (tell, draw):
        runs: SuiteRuns = run_suite(cases, folder, suite_options, tell, draw)
    scores = [
        score(
            case,
            runs.by_name.get(case.run.name),
            runs.by_name.get(case.control.name),
            refusal=runs.refused.get(case.name),
        )
        for case in cases
    ]
    devices = [result.device for result in runs.by_name.values() if result.device is not None]
    report = make_report(
        scores,
        preset=options["preset"],
        command=_command_line(options),
        device=devices[0] if devices else None,
        is_complete=runs.is_complete,
    )
    write_report(report, folder)
    click.echo(encode_report(report).decode() if as_json else f"{as_markdown(report)}\n{out / TEXT_FILE}")
    needed = options["require_accuracy"]
    if needed is not None and (report.accuracy is None or report.accuracy < needed):
        raise SystemExit(1)


def _command_line(options: dict[str, Any]) -> str:
    words = ["stepscope", "workload", "suite", "--preset", options["preset"]]
    if options["cases"]:
        words += ["--cases", options["cases"]]
    if options["device"] != "auto":
        words += ["--device", options["device"]]
    return shlex.join([*words, "-o", "DIR"])
