"""What is kept of a case for tests: a small run directory that is called as the whole one was, and what is known.

fixtures/CASE/traces/step{k}/   trimmed traces, one a rank
fixtures/CASE/steps/            the telemetry, whole: rhythms are told by many steps
fixtures/CASE/run.json          mesh and the unprofiled step, without the machine's name, versions and environment
fixtures/CASE/truth.json        what was built in, what the whole trace was called, what was measured
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec

from stepscope.core.errors import DataError
from stepscope.core.run_layout import RUN_FILE, STEPS_FOLDER, TRACES_FOLDER
from stepscope.reference_workloads.suite.cases import HEALTHY, Case
from stepscope.reference_workloads.suite.results import FIXTURES_FOLDER, RunResult, SuiteFolder
from stepscope.reference_workloads.suite.score import expected, expected_reasons
from stepscope.reference_workloads.suite.trimming import Detail, WholeTrace
from stepscope.store.files import write_whole
from stepscope.store.runs import load_manifest
from stepscope.workflow.analyze import analyze


def write_fixture(case: Case, result: RunResult, control: RunResult, folder: SuiteFolder) -> Path:
    """Keep the case's traces, trimmed as far as the verdict stays the same; returns the fixture's folder.

    Raises:
        DataError: there are no traces, or they cannot be read.
    """
    run = folder.runs / case.run.name
    captures = sorted((run / TRACES_FOLDER).glob("step*"), key=lambda path: path.stat().st_mtime)
    if not captures or not any(captures[-1].glob("rank*.json.gz")):
        raise DataError("has no traces", where=case.run.name)
    target = folder.path / FIXTURES_FOLDER / case.name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(run / STEPS_FOLDER, target / STEPS_FOLDER)
    manifest = replace(load_manifest(run), host="", versions={}, environment={})
    write_whole(target / RUN_FILE, msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    truth = _truth(case, result, control) | _trim(captures[-1], target, result)
    write_whole(target / "truth.json", msgspec.json.format(msgspec.json.encode(truth), indent=1))
    return target


def _trim(capture: Path, target: Path, result: RunResult) -> dict[str, Any]:
    """Write the smallest traces that are called as the whole ones were; returns what was kept, and whether it is so."""
    traces = {path.name: WholeTrace(path) for path in sorted(capture.glob("rank*.json.gz"))}
    kept_in = target / TRACES_FOLDER / capture.name
    kept_in.mkdir(parents=True)
    for first, end, detail in _ways(min(trace.num_steps for trace in traces.values())):
        for name, trace in traces.items():
            trimmed = trace.trimmed(first, end, detail)
            write_whole(kept_in / name, trimmed.content)
        verdict = analyze([str(target)], keep=False).analysis.verdict
        is_same = verdict.cause is result.cause and set(verdict.reasons) == set(result.reasons)
        if is_same:
            break
    return {
        "steps": list(trimmed.steps),
        "detail": detail.name.lower(),
        "trimmed_verdict": {"cause": verdict.cause, "reasons": verdict.reasons},
        "same_verdict": is_same,
    }


def _ways(num_steps: int) -> list[tuple[int, int, Detail]]:
    """First step, end and detail of what is tried, the smallest first: some faults strike in some steps only."""
    single = [(step, step + 1) for step in range(num_steps)]
    pair = [(0, 2)] if num_steps > 2 else []
    whole = (0, num_steps)
    return [
        *((first, end, Detail.LEDGER) for first, end in [*single, *pair]),
        *((first, end, Detail.KERNELS) for first, end in [*single, *pair, whole]),
    ]


def _truth(case: Case, result: RunResult, control: RunResult) -> dict[str, Any]:
    injection, plan = case.injection, case.run.job.plan
    return {
        "case": case.name,
        "fault": HEALTHY if injection is None else injection.name,
        "severity": {} if injection is None else asdict(injection),
        "shows": "" if injection is None else injection.shows,
        "expected": expected(case),
        "expected_reasons": expected_reasons(case),
        "layout": {"tp": plan.tp, "pp": plan.pp, "dp": plan.dp, "zero": plan.zero},
        "device": result.device,
        "verdict": {"cause": result.cause, "reasons": result.reasons},
        "captured_step_ms": result.captured_step_ms,
        "step_ms": result.step_ms,
        "control_captured_step_ms": control.captured_step_ms,
        "control_step_ms": control.step_ms,
    }
