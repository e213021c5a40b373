"""A simulated layer takes its time and changes no values."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch")

from stepscope.reference_workloads.models.simulated_compute import (  # noqa: E402
    SPAN_NAME,
    simulate_compute,
)


def test_values_and_gradients_pass_unchanged_and_backward_takes_twice_as_long() -> None:
    values = torch.arange(4.0, requires_grad=True)
    with torch.profiler.profile() as recorded:
        started = time.perf_counter()
        result = simulate_compute(values, 20)
        forward = time.perf_counter() - started
        torch.autograd.backward((result * 3).sum())
        backward = time.perf_counter() - started - forward
    assert torch.equal(result, values)
    assert torch.equal(values.grad, torch.full((4,), 3.0))
    assert forward >= 0.020
    assert backward >= 0.040
    assert [event.name for event in recorded.events()].count(SPAN_NAME) == 2
