"""Light captures are calibrated by the unprofiled steps just before them, and divide the idle time of a step."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from stepscope.analyzer.job_time.calibrated_steps import CalibratedSteps, RankCapture, calibrated_steps
from stepscope.analyzer.what_if.planned_calls import Removal
from stepscope.core.documents.run_directory import Step
from tests.analyzer.what_if.light_jobs import (
    OVERLAPS,
    READS,
    SYNCHRONIZES,
    Op,
    simulated,
    simulated_ranks,
    steady_ms,
    unprofiled_ms,
    without,
)

_FIRST = 12


def _steps(ends: list[int], unprofiled_ns: float) -> list[Step]:
    """The records of twelve unprofiled steps, and of the captured ones that follow."""
    before = [round(ends[0] - number * unprofiled_ns) for number in range(_FIRST, -1, -1)]
    spans = [*pairwise(before), *pairwise(ends)]
    return [
        Step(index, begin, end, captured=index >= _FIRST, state="active" if index >= _FIRST else "wait")
        for index, (begin, end) in enumerate(spans)
    ]


def _calibrated(ops: list[Op], *, unprofiled_ns: float | None = None) -> CalibratedSteps | None:
    job = simulated(ops, 8.0)
    trace, ends = job.trace, job.ends
    return calibrated_steps(
        [RankCapture(trace.build(), _steps(ends, unprofiled_ns or 1e6 * unprofiled_ms(ops)), _FIRST)]
    )


@pytest.mark.parametrize(("ops", "kind"), [(READS, "read"), (SYNCHRONIZES, "sync")])
def test_the_share_of_a_cost_is_that_of_the_unprofiled_step(ops: list[Op], kind: str) -> None:
    steps = _calibrated(ops)
    assert steps is not None
    assert steps.is_sound
    assert steps.unprofiled_ms == pytest.approx(unprofiled_ms(ops), rel=0.001)
    saved = 1 - unprofiled_ms(without(ops, kind)) / unprofiled_ms(ops)
    assert steps.saved(Removal.BLOCKING_CALLS) == pytest.approx(saved, abs=0.02)
    assert steps.saved(Removal.HOST_TIME) >= steps.saved(Removal.BLOCKING_CALLS) - 0.01


def test_all_ranks_are_replayed_together() -> None:
    late = [*[Op(9, gpu=12), Op(4, "read", 2)] * 30, *OVERLAPS[-2:]]
    plain = [*[Op(9, gpu=12)] * 30, *OVERLAPS[-2:]]
    bare_ns = 1e6 * steady_ms(*simulated_ranks([plain, late], (0.0, 0.0)))
    captures = simulated_ranks([plain, late], (8.0, 8.0))
    ranks = [RankCapture(one.trace.build(), _steps(one.ends, bare_ns), _FIRST) for one in captures]
    found = calibrated_steps(ranks)
    assert found is not None
    assert found.is_sound
    fixed_ms = steady_ms(*simulated_ranks([plain, without(late, "read")], (0.0, 0.0)))
    assert found.saved(Removal.BLOCKING_CALLS) == pytest.approx(1 - 1e6 * fixed_ms / bare_ns, abs=0.02)
    assert calibrated_steps([ranks[0], ranks[1]._replace(first_step=13)]) is None
    assert calibrated_steps(ranks * 9) is None


@pytest.mark.parametrize(("spread", "is_gain"), [(0.01, True), (0.9, False)])
def test_a_gain_within_the_noise_of_the_unprofiled_steps_is_none(spread: float, is_gain: bool) -> None:
    job = simulated(READS, 8.0)
    unprofiled_ns = 1e6 * unprofiled_ms(READS)
    steps = _steps(job.ends, unprofiled_ns)
    noisy = [
        replace(step, device_ns=round(unprofiled_ns * (1 + spread * (-0.5 if index % 2 else 0.5))))
        for index, step in enumerate(steps[:_FIRST])
    ]
    found = calibrated_steps([RankCapture(job.trace.build(), [*noisy, *steps[_FIRST:]], _FIRST)])
    assert found is not None
    assert (found.saved(Removal.BLOCKING_CALLS) > 0) == is_gain


def test_a_capture_that_its_neighbours_contradict_predicts_nothing() -> None:
    steps = _calibrated(READS, unprofiled_ns=5e6)
    assert steps is not None
    assert not steps.is_sound
    assert set(steps.without) == {Removal.HOST_TIME}


def test_long_steps_and_profiled_ones_before_it_are_no_neighbours() -> None:
    job = simulated(READS, 8.0)
    trace, ends = job.trace, job.ends
    steps = _steps(ends, 1e6 * unprofiled_ms(READS))
    longer = replace(steps[8], start_ns=steps[8].start_ns - 10**9)
    warming = replace(steps[11], start_ns=steps[11].start_ns - 10**6, state="warmup")
    found = calibrated_steps(
        [RankCapture(trace.build(), [*steps[:8], longer, *steps[9:11], warming, *steps[12:]], _FIRST)]
    )
    assert found is not None
    assert found.unprofiled_ms == pytest.approx(unprofiled_ms(READS), rel=0.001)


def test_too_few_neighbours_or_profiled_steps_calibrate_nothing() -> None:
    job = simulated(READS, 8.0)
    trace, ends = job.trace, job.ends
    steps = _steps(ends, 1e6 * unprofiled_ms(READS))
    assert calibrated_steps([RankCapture(trace.build(), steps[6:], _FIRST)]) is None
    assert calibrated_steps([RankCapture(trace.build(), steps[: _FIRST + 1], _FIRST)]) is None
    assert calibrated_steps([RankCapture(trace.build(), steps, 40)]) is None
