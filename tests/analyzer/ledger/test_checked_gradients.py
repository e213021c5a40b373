"""Checks of gradients for NaN in traces: those of anomaly mode, and others that are none."""

from __future__ import annotations

import pytest

from stepscope.analyzer.ledger.checked_gradients import EVALUATION, checked_gradients
from stepscope.core.vocabulary import Cause
from tests.analyzer.build import AUTOGRAD, TraceBuilder
from tests.analyzer.readings import analyse


def _backward(checks: str, *, inside: bool = False) -> TraceBuilder:
    """A step with an operator a letter: c is checked, n is not, a accumulates."""
    trace = TraceBuilder()
    trace.step(0, 0, 1000)
    for place, kind in enumerate(checks):
        at = 10 + 100 * place
        name = "torch::autograd::AccumulateGrad" if kind == "a" else "MmBackward0"
        trace.operator(f"{EVALUATION}{name}", at, at + 90, thread=AUTOGRAD)
        trace.operator(name, at + 1, at + (80 if inside else 30), thread=AUTOGRAD)
        if kind == "c":
            trace.operator("aten::isnan", at + 40, at + 50, thread=AUTOGRAD)
            trace.operator("aten::item", at + 60, at + 70, thread=AUTOGRAD)
    return trace


@pytest.mark.parametrize(("checks", "share"), [("ccaca", 1.0), ("cn", 0.5), ("nna", 0.0), ("aa", 0.0), ("", 0.0)])
def test_share_of_operators_whose_results_are_checked(checks: str, share: float) -> None:
    assert checked_gradients(_backward(checks).build()) == share


def test_a_check_that_an_operator_makes_itself_is_none() -> None:
    assert checked_gradients(_backward("cc", inside=True).build()) == 0.0


def test_anomaly_mode_that_no_setting_tells_is_the_first_action() -> None:
    trace = _backward("cc")
    trace.kernel(10, 20, launch=5)
    trace.kernel(960, 990, launch=950)
    verdict = analyse(trace).verdict
    assert verdict.cause is Cause.HOST_BOUND
    assert verdict.actions[0].startswith("torch.autograd.set_detect_anomaly(False) (now True)")
    assert ("gradients_checked_for_nan", 1.0) in [(item.metric, item.value) for item in verdict.evidence]
