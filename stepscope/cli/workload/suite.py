"""`stepscope workload faults` and `suite`: the faults that can be injected, and the score of the verdicts on them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click

from stepscope.cli.options import FOLDER, POSITIVE

FAULTS_SCHEMA = "stepscope.faults/1"


@click.command("faults")
@click.option("--json", "as_json", is_flag=True, help=f"Print one {FAULTS_SCHEMA} document.")
def faults_command(as_json: bool) -> None:
    """List the faults that `workload run --inject` accepts."""
    from stepscope.reference_workloads.injections.catalogue import list_faults

    faults = list_faults()
    if as_json:
        click.echo(json.dumps({"schema": FAULTS_SCHEMA, "faults": faults, "warnings": []}, indent=1))
        return
    for fault in faults:
        severity = ", ".join(f"{name}={value}" for name, value in fault["severity"].items())
        reasons = f" ({', '.join(fault['reasons'])})" if fault["reasons"] else ""
        click.echo(f"{fault['name']}  {severity}".rstrip())
        click.echo(f"    {fault['what']}")
        click.echo(f"    verdict  {fault['cause']}{reasons}")
        click.echo(f"    shows    {fault['shows']}")
        click.echo(f"    needs    {'; '.join(fault['needs']) or 'nothing'}")


LIST_SCHEMA = "stepscope.suite-cases/1"


@click.command("suite")
@click.option("--preset", default="tiny", help="tiny or tiny-3d (CPU), one-gpu, two-gpu, four-gpu or node.")
@click.option("--cases", metavar="A[,B...]", help="Train only these cases, by name or pattern (ddp-*).  [default: all]")
@click.option(
    "--budget-minutes", type=POSITIVE, help="Start no run that would end later; the same command continues from there."
)
@click.option(
    "--keep-traces",
    type=click.Choice(["whole", "trimmed", "none"]),
    default="whole",
    help="Keep traces whole, trimmed (a small fixture per case in DIR/fixtures), or not at all.",
)
@click.option("--again", is_flag=True, help="Repeat runs that failed.")
@click.option("--list", "only_list", is_flag=True, help="List the cases and run nothing.")
@click.option("--require-accuracy", type=click.FloatRange(0, 1), metavar="RATIO", help="Exit with status 1 below it.")
@click.option("--device", default="auto", help="Train on auto (the preset's), cpu or cuda.")
@click.option("-o", "--out", required=False, type=FOLDER, metavar="DIR", help="Folder of runs and results.")
@click.option("--json", "as_json", is_flag=True, help=f"Print stepscope.suite/1; with --list, {LIST_SCHEMA}.")
def suite_command(out: str | None, only_list: bool, as_json: bool, **options: Any) -> None:
    """Train runs with one known fault each and their controls, analyze them, and score the verdicts.

    Writes DIR/confusion.md and confusion.json over all cases in DIR. A second call continues where the first stopped.
    Wrong verdicts are data: the exit status is 1 only when --require-accuracy is missed or cannot be judged yet.
    """
    from stepscope.reference_workloads.suite.cases import find_cases

    chosen = options["cases"].split(",") if options["cases"] else []
    cases = find_cases(options["preset"], device=options["device"], only=[name.strip() for name in chosen])
    if only_list:
        _print_cases(cases, options["preset"], as_json=as_json)
        return
    if out is None:
        raise click.UsageError("Missing option '-o' / '--out'.")
    _run_suite(cases, Path(out), options, as_json=as_json)


def _run_suite(cases: list[Any], out: Path, options: dict[str, Any], *, as_json: bool) -> None:
    from stepscope.cli.terminal.console import run_progress
    from stepscope.reference_workloads.suite import report as suite_report
    from stepscope.reference_workloads.suite.cases import find_cases
    from stepscope.reference_workloads.suite.results import SuiteFolder
    from stepscope.reference_workloads.suite.runner import SuiteOptions, SuiteRuns, known_results, run_suite
    from stepscope.reference_workloads.suite.score import score_case

    folder = SuiteFolder(out)
    minutes = options["budget_minutes"]
    suite_options = SuiteOptions(
        budget_seconds=None if minutes is None else 60.0 * minutes,
        keep_traces=options["keep_traces"],
        again=options["again"],
    )
    with run_progress("suite") as (tell, draw):
        runs: SuiteRuns = run_suite(cases, folder, suite_options, tell, draw)
    chosen = {case.name for case in cases}
    every = find_cases(options["preset"], device=options["device"])
    # other cases of the folder are scored again, so that a call for a few loses none of the rest
    results = {**known_results([case for case in every if case.name not in chosen], folder), **runs.by_name}
    scores = [
        score_case(
            case, results.get(case.run.name), results.get(case.control.name), refusal=runs.refused.get(case.name)
        )
        for case in every
        if case.name in chosen or case.run.name in results
    ]
    devices = [result.device for result in results.values() if result.device is not None]
    words = ["stepscope", "workload", "suite", "--preset", options["preset"]]
    if options["cases"]:
        words += ["--cases", options["cases"]]
    if options["device"] != "auto":
        words += ["--device", options["device"]]
    report = suite_report.make_suite_report(
        scores,
        preset=options["preset"],
        command=shlex.join([*words, "-o", "DIR"]),
        device=devices[0] if devices else None,
        is_complete=runs.is_complete,
    )
    suite_report.write_suite_report(report, folder)
    click.echo(
        suite_report.encode_suite_report(report).decode()
        if as_json
        else f"{suite_report.suite_report_markdown(report)}\n{out / suite_report.TEXT_FILE}"
    )
    if options["require_accuracy"] is not None:
        rows = [row for row in scores if row.case in chosen]
        why = _why_missed(rows, options["require_accuracy"], is_complete=runs.is_complete)
        if why is not None:
            click.echo(f"stepscope: --require-accuracy: {why}; see {out / suite_report.TEXT_FILE}", err=True)
            raise SystemExit(1)


def _why_missed(rows: list[Any], needed: float, *, is_complete: bool) -> str | None:
    """Why the chosen cases do not reach the accuracy; None when they do."""
    from stepscope.core.text.numbers import counted
    from stepscope.reference_workloads.suite.score import SCORED, accuracy

    if not is_complete:
        return "not passed, as not all cases have been run; the same command goes on"
    found = accuracy(rows)
    if found is None:
        return "not passed, as no case was scored"
    if found >= needed:
        return None
    num_scored = sum(row.outcome in SCORED for row in rows)
    return (
        f"{round(found * num_scored)} of {counted(num_scored, 'labelled run')} called right, not {needed:.4g} of them"
    )


def _print_cases(cases: list[Any], preset: str, *, as_json: bool) -> None:
    if as_json:
        listed = [{"case": case.name, "layout": case.layout, "control": case.control.name} for case in cases]
        document = {"schema": LIST_SCHEMA, "preset": preset, "cases": listed, "warnings": []}
        click.echo(json.dumps(document, indent=1))
        return
    for case in cases:
        click.echo(f"{case.name}  (control: {case.control.name})")
