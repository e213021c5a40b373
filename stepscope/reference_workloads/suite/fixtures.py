"""What is kept of a case for tests: its trimmed traces, and what is known about it.

fixtures/CASE/rank{r}.json.gz   trimmed traces
fixtures/CASE/truth.json        what was built in, what the whole trace was called, what was measured
"""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from stepscope.core.analysis import Verdict
from stepscope.core.errors import DataError
from stepscope.core.run_layout import TRACES_FOLDER
from stepscope.reference_workloads.suite.cases import HEALTHY, Case
from stepscope.reference_workloads.suite.results import FIXTURES_FOLDER, RunResult, SuiteFolder
from stepscope.reference_workloads.suite.score import expected, expected_reasons
from stepscope.reference_workloads.suite.trimming import trim
from stepscope.store.files import write_whole
from stepscope.workflow.analyze import analyze

_NUM_STEPS_TRIED = (2, None)
"""Two steps where they tell the same as all."""


def write_fixture(case: Case, result: RunResult, control: RunResult, folder: SuiteFolder) -> Path:
    """Keep the case's traces, trimmed as far as the verdict stays the same; returns the fixture's folder.

    Raises:
        DataError: there are no traces, or they cannot be read.
    """
    traces = sorted((folder.runs / case.run.name / TRACES_FOLDER).rglob("rank*.json.gz"))
    if not traces:
        raise DataError("has no traces", where=case.run.name)
    target = folder.path / FIXTURES_FOLDER / case.name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for num_steps in _NUM_STEPS_TRIED:
        for path in traces:
            trimmed = trim(path, num_steps=num_steps)
            write_whole(target / path.name, trimmed.content)
        verdict = analyze([str(target)], keep=False).analysis.verdict
        if _is_same(verdict, result):
            break
    truth = _truth(case, result, control) | {
        "steps": list(trimmed.steps),
        "trimmed_verdict": {"cause": verdict.cause, "reasons": verdict.reasons},
        "same_verdict": _is_same(verdict, result),
    }
    write_whole(target / "truth.json", msgspec.json.format(msgspec.json.encode(truth), indent=1))
    return target


def _is_same(verdict: Verdict, result: RunResult) -> bool:
    return verdict.cause is result.cause and set(verdict.reasons) == set(result.reasons)


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
