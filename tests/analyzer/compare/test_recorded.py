"""Recorded parts of all steps: rare phases are found, one at a run's end is not, a shared machine is no change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.compare.comparison import compare_runs
from stepscope.analyzer.compare.recorded import REST, compare_recorded, mean_step, recorded_effect
from stepscope.analyzer.compare.run_record import RunRecord
from stepscope.core.documents.comparison import Change, Comparison
from tests.analyzer.compare.runs import make_run


def _run(
    step_ms: Sequence[float], parts: Mapping[str, Sequence[float]] | None = None, *, kind: str = "cpu"
) -> RunRecord:
    run = replace(make_run(10.0, 10.0, unprofiled_ms=list(step_ms)), parts_ms=dict(parts or {}))
    return replace(run, analysis=replace(run.analysis, job=replace(run.analysis.job, device_kind=kind)))


def _with_phase(every: int, length_ms: float, *, num_steps: int = 120, first: int = 3) -> RunRecord:
    saves = np.zeros(num_steps)
    saves[first::every] = length_ms
    steps = 10.0 + 0.05 * (np.arange(num_steps) % 5) + saves
    return _run(steps.tolist(), {"checkpoint": saves.tolist()})


def _compared(a: RunRecord, b: RunRecord) -> Comparison:
    return compare_runs([a], [b], names=("a", "b"))


@pytest.mark.parametrize("every", [5, 20, 40])
def test_a_checkpoint_that_makes_the_mean_step_longer_is_found_however_rare(every: int) -> None:
    found = _compared(_with_phase(1000, 0.0), _with_phase(every, 13.0 * every))
    assert found.step_time_mean.relative == pytest.approx(1.3, rel=0.15)
    assert found.step_time_mean.state is Change.SLOWER
    assert found.recorded[0].name == "checkpoint"
    assert found.summary.startswith("b is slower")


def test_a_phase_more_at_the_end_of_a_run_is_no_change() -> None:
    found = _compared(_with_phase(40, 20.0, num_steps=120), _with_phase(40, 20.0, num_steps=126))
    assert found.step_time_mean.state is Change.NOT_SEEN
    alone = _compared(_with_phase(1000, 0.0), _with_phase(1000, 100.0))
    assert alone.recorded[0].ms.state is Change.NOT_SEEN


def test_a_machine_that_others_use_is_no_change() -> None:
    delay = np.where(np.arange(100) % 3 == 0, 9.0, 3.0)
    busy = _run((10.0 + delay).tolist(), {"run_delay": delay.tolist()})
    quiet = _run([10.0 + 0.01 * (index % 3) for index in range(100)])
    found = _compared(quiet, busy)
    assert (found.step_time.state, found.step_time_mean.state) == (Change.NOT_SEEN, Change.NOT_SEEN)
    assert found.step_time.b == pytest.approx(10.0)
    assert "shared_machine" in [notice.code for notice in found.findings]
    on_gpu = _compared(*(replace_kind(run, "gpu") for run in (quiet, busy)))
    assert on_gpu.step_time.b == pytest.approx(13.0)
    assert on_gpu.step_time.state is Change.NOT_SEEN


def replace_kind(run: RunRecord, kind: str) -> RunRecord:
    return replace(run, analysis=replace(run.analysis, job=replace(run.analysis.job, device_kind=kind)))


def test_waits_and_the_rest_are_told_apart() -> None:
    waits = [2.0 + 0.1 * (index % 4) for index in range(100)]
    a = _run([10.0 + 0.05 * (index % 5) for index in range(100)], {"data_loading": [0.1] * 100})
    b = _run([12.0 + 0.05 * (index % 5) for index in range(100)], {"data_loading": waits})
    rows = {row.name: row.ms for row in _compared(a, b).recorded}
    assert rows["data_loading"].state is Change.SLOWER
    assert rows[REST].state is Change.NOT_SEEN


def test_without_records_nothing_is_told() -> None:
    sides = ([make_run(10.0, 10.0)], [make_run(10.0, 10.0)])
    assert compare_recorded(sides, assumed_spread=0.01) == []
    assert recorded_effect(sides, "checkpoint", assumed_spread=0.1) is None


@given(
    lengths=st.lists(st.floats(0.0, 500.0), min_size=20, max_size=60),
    base=st.floats(1.0, 100.0),
)
def test_the_difference_of_the_means_is_exact(lengths: list[float], base: float) -> None:
    a = _run([base] * 30)
    b = _run([base + length for length in lengths], {"checkpoint": lengths})
    effect = mean_step(([a], [b]), assumed_spread=0.015 * base)
    assert effect.b - effect.a == pytest.approx(np.mean(lengths), abs=1e-6)
    assert effect.error > 0


def test_same_code_on_a_drifting_machine_is_rarely_called_slower() -> None:
    random, num_called = np.random.default_rng(0), 0
    for _ in range(100):
        sides: list[Any] = []
        for _ in range(2):
            drift = np.cumsum(random.normal(0, 0.01, 200))
            level = 1 + 0.01 * random.normal()
            sides.append(_run((10.0 * level * np.exp(drift - drift.mean() + 0.02 * random.normal(0, 1, 200))).tolist()))
        num_called += _compared(*sides).step_time.state is not Change.NOT_SEEN
    assert num_called <= 8
