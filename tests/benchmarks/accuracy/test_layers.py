"""Ablation: what a layer says alone is what an analysis without the others says."""

from __future__ import annotations

import pytest

from benchmarks.accuracy.layers import ABSTAINED, JOINED, RIGHT, WRONG, LabelledRun, marks_of
from benchmarks.labelled_runs.score import KEPT, truth_of


@pytest.mark.parametrize(
    ("run", "trace", "telemetry"),
    [("cpu/ddp_reduces_often", RIGHT, ABSTAINED), ("gpu/trainer_saves", WRONG, RIGHT)],
)
def test_a_layer_alone_is_the_run_without_the_others(run: str, trace: str, telemetry: str) -> None:
    marks = marks_of(LabelledRun(run, KEPT / run, truth_of(KEPT / run)))
    assert marks[JOINED] == RIGHT
    assert (marks["trace alone"], marks["telemetry alone"]) == (trace, telemetry)
    assert (marks["without telemetry"], marks["without trace"]) == (trace, telemetry)
