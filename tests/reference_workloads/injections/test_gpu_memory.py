"""Allocator fault: lengthens a step by the stated amount. On a clock moved by its own cycles and layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.reference_workloads.injections.gpu_memory import MEASURED_STEP, AllocatorChurn, Churn
from stepscope.reference_workloads.job import TrainingJob


class Device:
    """A clock moved by layers and by the driver."""

    def __init__(self, layer_seconds: float, cycle_seconds: float) -> None:
        self.now = 0.0
        self.layer_seconds, self.cycle_seconds = layer_seconds, cycle_seconds

    def cycle(self) -> None:
        self.now += self.cycle_seconds

    def step_seconds(self, churn: Churn, step: int, num_layers: int) -> float:
        began = self.now
        churn.begin_step(step)
        for _ in range(num_layers):
            self.now += self.layer_seconds
            churn.after_layer()
        return self.now - began


@given(
    st.floats(min_value=0.2, max_value=2.0),
    st.integers(min_value=1, max_value=96),
    st.floats(min_value=1e-3, max_value=0.1),
    st.floats(min_value=1e-2, max_value=0.5),
)
def test_a_step_becomes_longer_by_the_ratio_whatever_the_driver_takes(
    extra_ratio: float, num_layers: int, layer_seconds: float, cycle_per_layer: float
) -> None:
    device = Device(layer_seconds, cycle_per_layer * layer_seconds)
    churn = Churn(extra_ratio, cycle=device.cycle, wait=lambda: None, clock=lambda: device.now)
    steps = [device.step_seconds(churn, step, num_layers) for step in range(MEASURED_STEP + 3)]
    alone = num_layers * layer_seconds
    assert steps[: MEASURED_STEP + 1] == pytest.approx([alone] * (MEASURED_STEP + 1))
    for step in steps[MEASURED_STEP + 1 :]:
        # a cycle that waits for the device, and one that is under way when the time is up
        assert alone * (1 + extra_ratio) <= step * (1 + 1e-9)
        assert step <= alone * (1 + extra_ratio + 2 * cycle_per_layer) * (1 + 1e-9)


def test_fault_and_control_differ_by_a_fifth_at_least() -> None:
    assert AllocatorChurn().extra_ratio >= 0.2


def test_runs_without_a_step_for_the_fault_are_refused(job_of: Callable[..., TrainingJob]) -> None:
    job = job_of()
    assert AllocatorChurn().refusal(job) is None
    assert "and there are 3" in (AllocatorChurn().refusal(replace(job, num_steps=3)) or "")
