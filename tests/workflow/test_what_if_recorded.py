"""Replays of recorded H100 jobs match their measured steps, and fixes the healthy job's step."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from stepscope.analyzer.what_if.rank_graph import Edges
from stepscope.analyzer.what_if.whole_job import replay_model
from stepscope.core.documents.what_if import WhatIfReport
from stepscope.core.vocabulary import Cause
from stepscope.workflow.job_input import read_job
from stepscope.workflow.what_if import what_if

pytestmark = pytest.mark.shared

REPLAY_ERROR = 0.02
PREDICTION_ERROR = 0.08


@cache
def report_of(folder: Path) -> WhatIfReport:
    truth: dict[str, Any] = json.loads((folder.parent / "truth.json").read_text())
    return what_if([str(folder)], unprofiled_step_ms=truth[folder.name]["unprofiled_step_ms"])


@pytest.mark.parametrize("case", ["ddp", "fsdp", "tp", "pp_few", "slow_loader", "straggler", "ckpt_stall"])
def test_nothing_changed_gives_the_measured_steps(shared_traces: Path, case: str) -> None:
    assert abs(report_of(shared_traces / "h100x2" / case).replay_error) < REPLAY_ERROR


@pytest.mark.parametrize(
    ("case", "cause", "ranks"),
    [
        ("slow_loader", Cause.DATA_LOADING, {0, 1}),
        ("straggler", Cause.STRAGGLER, {1}),
        ("ckpt_stall", Cause.CHECKPOINT, {0, 1}),
    ],
)
def test_without_its_cause_a_job_takes_what_the_healthy_one_takes(
    shared_traces: Path, case: str, cause: Cause, ranks: set[int]
) -> None:
    healthy = report_of(shared_traces / "h100x2" / "ddp").measured_step_ms
    fix = next(fix for fix in report_of(shared_traces / "h100x2" / case).fixes if fix.fix is cause)
    assert fix.step_ms == pytest.approx(healthy, rel=PREDICTION_ERROR)
    assert set(fix.ranks) <= ranks


def test_a_job_without_a_gpu_has_code_between_operators_instead_of_launch_delays(shared_traces: Path) -> None:
    report = what_if([str(shared_traces / "cpu4" / "healthy")])
    assert report.device_kind == "cpu"
    assert [fix.change for fix in report.fixes if fix.fix is Cause.HOST_BOUND] == ["without the code between operators"]
    assert report_of(shared_traces / "h100x2" / "ddp").device_kind == "gpu"


def test_the_step_whose_wait_began_before_the_traces_is_left_out(shared_traces: Path) -> None:
    report = report_of(shared_traces / "h100x2" / "ckpt_stall")
    assert (report.steps, report.skipped_steps) == ([6], [5])


def test_without_waits_between_streams_a_pipeline_is_not_replayed(shared_traces: Path) -> None:
    """The error is no construction: what the host and single kernels took does not give the step by itself."""
    views = read_job([str(shared_traces / "h100x2" / "pp_few")]).views
    cut = [
        replace(v, graph=replace(v.graph, events=Edges(v.graph.events.source[:0], v.graph.events.target[:0])))
        for v in views
        if v.graph is not None
    ]
    model = replay_model(cut)
    assert model is not None
    assert model.step_ms(model.base) < 0.9 * model.measured_ms()


@pytest.mark.parametrize(("run", "is_slower"), [("public/torch213_gloo", True), ("h100x2/slow_loader", False)])
def test_an_ideal_that_is_slower_than_what_was_is_said_to_be_so(
    shared_traces: Path, run: str, *, is_slower: bool
) -> None:
    report = what_if([str(shared_traces / run)])
    assert (report.slowdown < 0.999) is is_slower
    assert ("ideal_is_slower" in [notice.code for notice in report.warnings]) is is_slower
