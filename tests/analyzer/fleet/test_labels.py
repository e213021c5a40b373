"""What ranks did in captures becomes the class that counters should name between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fleet_class.windows import (
    Captured,
    at_pace,
    label_between,
    label_of,
    mean_step,
    pace_within,
    undisturbed,
)
from stepscope.core.documents.run_directory import Step
from stepscope.core.vocabulary import Cause, TimeCategory
from stepscope.workflow.analyze import analyze

_RECORDED = Path(__file__).parents[2] / "reference_workloads" / "suite" / "recorded"


def _captured(step_ms: float = 100.0, **shares: float) -> Captured:
    return Captured(
        step_ms, dict.fromkeys(TimeCategory, 0.0) | {TimeCategory(name): share for name, share in shares.items()}
    )


@pytest.mark.parametrize(
    ("shares", "right"),
    [
        ({"compute_bound": 0.6, "memory_bound": 0.3, "wait": 0.1}, {Cause.COMPUTE_BOUND}),
        ({"compute_bound": 0.45, "memory_bound": 0.5}, {Cause.COMPUTE_BOUND, Cause.MEMORY_BOUND}),
        ({"compute_bound": 0.5, "wait": 0.3, "communication": 0.2}, {Cause.COMMUNICATION}),
        ({"compute_bound": 0.4, "data_loading": 0.6}, {Cause.DATA_LOADING}),
        ({"compute_bound": 0.4, "checkpoint": 0.4, "copy": 0.2}, {Cause.CHECKPOINT}),
        ({"compute_bound": 0.4, "synchronization": 0.6}, {Cause.HOST_BOUND}),
    ],
)
def test_labels(shares: dict[str, float], right: set[Cause]) -> None:
    spent, told = label_of(_captured(**shares).shares)
    assert told == right
    assert sum(spent.values()) == pytest.approx(sum(shares.values()))


@pytest.mark.parametrize(
    ("step_ms", "empty", "waiting"),
    [
        (100.0, 0.3, 0.1),
        (80.0, 0.1875, 0.0625),  # 60 ms of work in 80
        (60.0, 0.0, 0.0),
        (120.0, 0.375, 0.125),
        (50.0, 0.3, 0.1),  # the work alone takes longer
    ],
)
def test_all_but_the_work_fills_the_step(step_ms: float, empty: float, waiting: float) -> None:
    shares = at_pace(_captured(compute_bound=0.5, communication=0.1, wait=0.1, host_bound=0.3), step_ms)
    assert shares[TimeCategory.HOST_BOUND] == pytest.approx(empty)
    assert shares[TimeCategory.WAIT] == pytest.approx(waiting)
    assert sum(shares.values()) == pytest.approx(1.0)


def test_a_step_of_work_alone_stays_as_it_is() -> None:
    shares = _captured(compute_bound=1.0)
    assert at_pace(shares, 130.0) == shares.shares


def test_captures_before_and_after_count_alike_however_long_their_steps() -> None:
    before = _captured(100.0, compute_bound=0.5, data_loading=0.5)
    after = _captured(300.0, compute_bound=1 / 6, wait=5 / 6)
    spent, _ = label_between([before, after], 100.0)
    assert spent == pytest.approx({"compute": 0.5, "exposed_comm": 0.25, "copy": 0.0, "idle": 0.25})


@pytest.mark.parametrize(
    ("case", "step_ms", "right"),
    [
        ("ddp-slow_loader", 526.0, [{Cause.DATA_LOADING}] * 2),
        ("ddp-host_sync", 254.0, [{Cause.COMPUTE_BOUND, Cause.HOST_BOUND}, {Cause.COMPUTE_BOUND}]),
        # its pace is the mean of steps with a checkpoint and without
        ("ddp-checkpoint_stall", 330.0, [{Cause.CHECKPOINT}] * 2),
        # the second rank waits in its all-reduces for the first one's host
        ("ddp-launch_bound", 78.0, [{Cause.HOST_BOUND}, {Cause.HOST_BOUND}]),
        ("ddp-straggler", 339.0, [{Cause.COMMUNICATION}, {Cause.COMPUTE_BOUND}]),
    ],
)
def test_recorded_captures(case: str, step_ms: float, right: list[set[Cause]]) -> None:
    ledgers = analyze([str(_RECORDED / case)], keep=False).analysis.ranks
    steps = [mean_step(ledger) for ledger in ledgers]
    assert [label_between([step], step_ms)[1] for step in steps if step is not None] == right


def test_the_last_step_of_a_capture_lacks_its_end() -> None:
    ledger = analyze([str(_RECORDED / "ddp-slow_loader")], keep=False).analysis.ranks[0]
    step = mean_step(ledger)
    assert step is not None
    assert len(ledger.steps) == 2
    assert step.step_ms == ledger.steps[0].ms
    assert step.shares[TimeCategory.DATA_LOADING] == pytest.approx(0.589, abs=0.001)


def _steps(*captured: int, count: int = 20) -> list[Step]:
    return [Step(at, 1000 * at, 1000 * at + 900, captured=at in captured) for at in range(count)]


def test_windows_lie_between_captures_and_beside_what_these_disturb() -> None:
    between = undisturbed(_steps(2, 3, 10, 11, 18))
    assert [(first, [step.index for step in steps], following) for first, steps, following in between] == [
        (2, [5, 6, 7, 8], 10),
        (10, [13, 14, 15, 16], 18),
    ]
    assert undisturbed(_steps(2, 3, 6, 7)) == []
    assert undisturbed(_steps(2, 3)) == []
    assert undisturbed([]) == []


def test_the_pace_is_of_whole_steps_with_what_lies_between() -> None:
    steps = _steps()
    assert pace_within(steps, 2000, 5000) == pytest.approx(2900 / 3 / 1e6)
    assert pace_within(steps, 2001, 2999) is None
