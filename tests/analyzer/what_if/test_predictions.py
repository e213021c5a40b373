"""The verdict quotes the change of a cause that answers its reason."""

from __future__ import annotations

import pytest

from stepscope.analyzer.what_if.predictions import _answer_first
from stepscope.core.documents.analysis import RootCause, WhatIf
from stepscope.core.vocabulary import Cause, Reason


def _gain(change: str, speedup: float) -> WhatIf:
    return WhatIf(
        fix=Cause.COMMUNICATION,
        change=change,
        step_ms=100 / speedup,
        speedup=speedup,
        calibrated_step_ms=None,
        binds_next=None,
        replay_error=0.0,
        measured_step_ms=100.0,
    )


@pytest.mark.parametrize(
    ("reasons", "overlapped", "first"),
    [
        ([Reason.NO_OVERLAP], 1.4, "gradients reduced beside the backward pass"),
        ([Reason.NO_OVERLAP], 1.02, "transfers at the link's expected bandwidth"),  # tensor parallelism's are exposed
        ([Reason.SLOW_LINK], 1.4, "transfers at the link's expected bandwidth"),
        ([], 1.4, "transfers at the link's expected bandwidth"),
    ],
)
def test_what_answers_the_reason_comes_first(reasons: list[Reason], overlapped: float, first: str) -> None:
    row = RootCause(Cause.COMMUNICATION, reasons, 0.4, 40.0, (0.3, 0.5), [0], [])
    gains = [
        _gain("transfers at the link's expected bandwidth", 1.01),
        _gain("gradients reduced beside the backward pass", overlapped),
        _gain("transfers free", 1.5),
    ]
    assert _answer_first(row, gains)[0].change == first
