"""Headrooms of a job: order, interactions, and where nothing is promised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.analyzer.headroom.changes import Changed, Effort, JobFacts, KnownChange
from stepscope.analyzer.headroom.headrooms import MIN_GAIN, headrooms
from stepscope.analyzer.headroom.knobs import TORCH_KNOBS
from stepscope.analyzer.headroom.step_model import NO_TIME, Span, StepModel
from stepscope.core.vocabulary import Change
from tests.analyzer.headroom.build import FACTS, Kernel, step_of

STEP = step_of([Kernel("aten::mul", [[1024]], us) for us in (4_000.0, 3_000.0, 3_000.0)])


def removes(
    *places: int, change: Change, asks: Effort = Effort.A_SETTING, contains: frozenset[Change] = frozenset()
) -> KnownChange:
    """A change after which some kernels are gone."""

    def model(step: StepModel, _facts: JobFacts) -> Changed | None:
        left = [at for at in places if step.most_ns[at] > 0]
        return Changed(step.after(change, dict.fromkeys(left, NO_TIME)), "why", 0.1) if left else None

    return KnownChange(change, model, asks, contains)


def test_every_kind_of_change_has_a_knob() -> None:
    assert set(TORCH_KNOBS) == set(Change)


def test_the_largest_gain_comes_first_and_gains_are_not_added_up() -> None:
    both = removes(0, 1, change=Change.FUSED_ATTENTION)
    one = removes(1, 2, change=Change.FUSED_OPTIMIZER)
    rows = headrooms(STEP, FACTS, [one, both])
    assert [row.change for row in rows] == [Change.FUSED_ATTENTION, Change.FUSED_OPTIMIZER]
    assert [row.step_ms for row in rows] == pytest.approx([3.0, 4.0], rel=0.01)
    assert [row.together_ms for row in rows] == pytest.approx([3.0, 0.0], rel=0.01, abs=0.01)
    assert rows[0].speedup == pytest.approx(10 / 3, rel=0.01)


def test_a_change_that_gains_nothing_after_another_says_so() -> None:
    all_of_it = removes(0, 1, change=Change.AUTOCAST, contains=frozenset({Change.TF32_PRODUCTS}))
    rows = headrooms(STEP, FACTS, [removes(0, 1, change=Change.TF32_PRODUCTS), all_of_it])
    assert [(row.change, row.together_ms is None) for row in rows] == [
        (Change.TF32_PRODUCTS, False),
        (Change.AUTOCAST, True),
    ]


def test_settings_come_before_a_compiler_whatever_they_gain() -> None:
    compiler = removes(0, 1, change=Change.FUSED_KERNELS, asks=Effort.A_COMPILER)
    rows = headrooms(STEP, FACTS, [compiler, removes(2, change=Change.FUSED_OPTIMIZER)])
    assert [row.change for row in rows] == [Change.FUSED_OPTIMIZER, Change.FUSED_KERNELS]


def test_small_gains_are_not_listed() -> None:
    step = step_of([Kernel("aten::mul", [[1024]], us) for us in (10_000.0, 9_000.0 * MIN_GAIN)])
    assert headrooms(step, FACTS, [removes(1, change=Change.FUSED_OPTIMIZER)]) == []


def test_an_unknown_host_gives_an_interval() -> None:
    step = replace(STEP, host_ms=Span(2.0, 8.0), spares_host=False)
    row = headrooms(step, FACTS, [removes(0, 1, change=Change.FUSED_ATTENTION)])[0]
    assert row.interval_ms == pytest.approx((3.0, 8.0), rel=0.01)
    assert row.step_ms == pytest.approx(5.0, rel=0.01)
