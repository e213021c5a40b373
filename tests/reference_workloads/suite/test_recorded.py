"""Runs of the two-gpu suite recorded on two H200, trimmed: they are called as they were, and their gains predicted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.causes import Cause
from stepscope.workflow.analyze import analyze

_RECORDED = sorted(Path(__file__).with_name("recorded").iterdir())


def _truth(case: Path) -> dict[str, Any]:
    truth: dict[str, Any] = json.loads((case / "truth.json").read_text())
    return truth


@pytest.mark.parametrize("case", _RECORDED, ids=lambda case: case.name)
def test_a_recorded_run_is_called_by_its_fault(case: Path) -> None:
    truth = _truth(case)
    verdict = analyze([str(case)], keep=False).analysis.verdict
    assert verdict.cause in truth["expected"]
    assert set(truth["expected_reasons"].get(verdict.cause, verdict.reasons)) <= set(verdict.reasons)


@pytest.mark.parametrize(
    ("name", "cause", "change"),
    [
        ("pp-few_micro_batches", Cause.PIPELINE_BUBBLE, "the same batch in 4 micro-batches instead of 2"),
        ("ddp-no_overlap", Cause.COMMUNICATION, "gradients reduced beside the backward pass"),
        ("tp-wrong_transport", Cause.COMMUNICATION, "transfers at the link's expected bandwidth"),
    ],
)
def test_the_change_that_answers_the_reason_comes_first_and_is_right(name: str, cause: Cause, change: str) -> None:
    """One step of three is left of each: the replay of that one misses some percent of `ddp-no_overlap`."""
    case = next(case for case in _RECORDED if case.name == name)
    analysis = analyze([str(case)], keep=False).analysis
    quoted = next(what_if for what_if in analysis.what_if if what_if.fix is cause)
    assert quoted.change == change
    assert quoted.step_ms == pytest.approx(_truth(case)["control_captured_step_ms"], rel=0.1)
