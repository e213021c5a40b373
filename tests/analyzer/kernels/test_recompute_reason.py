"""A forward pass that runs twice is a recompute cause; the recomputation inside flash attention is not."""

from __future__ import annotations

import pytest

from stepscope.analyzer.kernels.job_kernels import with_kernel_reasons
from stepscope.core.documents.analysis import AnalysedJob, MeshSizes, Roofline, RooflineCoverage, RootCause
from stepscope.core.vocabulary import Cause, Reason

_ROOFLINE = Roofline(RooflineCoverage(1.0, 0.0, 0.0), [])


def _reasons(cause: Cause, mfu: float | None, hfu: float | None) -> list[Reason]:
    job = AnalysedJob(1, [0], [], MeshSizes(), None, 3, 100.0, None, mfu=mfu, hfu=hfu)
    row = RootCause(cause, [], 0.9, 90.0, (0.8, 1.0), [0], [])
    return with_kernel_reasons(row, _ROOFLINE, job).reasons


@pytest.mark.parametrize(
    ("cause", "mfu", "hfu", "reasons"),
    [
        (Cause.COMPUTE_BOUND, 0.36, 0.48, [Reason.RECOMPUTE]),
        (Cause.COMPUTE_BOUND, 0.42, 0.45, []),
        (Cause.COMPUTE_BOUND, None, None, []),
        (Cause.COMPUTE_BOUND, 0.4, None, []),
        (Cause.HOST_BOUND, 0.36, 0.48, []),
    ],
)
def test_recompute_is_a_reason_of_compute(
    cause: Cause, mfu: float | None, hfu: float | None, reasons: list[Reason]
) -> None:
    assert _reasons(cause, mfu, hfu) == reasons
