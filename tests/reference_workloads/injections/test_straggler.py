"""Is a rank that computes longer than its peers named, whatever their gradients travel by?"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepscope.core.analysis import Analysis
from stepscope.core.causes import Cause
from stepscope.reference_workloads.injections.straggler import Straggler
from stepscope.reference_workloads.job import TrainingJob


@pytest.mark.parametrize("zero", [0, 2])
def test_the_slow_rank_is_named(analysis_of: Callable[..., Analysis], zero: int) -> None:
    verdict = analysis_of("straggler", simulate_ms=10, dp=2, zero=zero).verdict
    assert (verdict.cause, verdict.ranks) == (Cause.STRAGGLER, [1])


def test_its_peers_must_have_the_same_work(job_of: Callable[..., TrainingJob]) -> None:
    assert "same work" in (Straggler().refusal(job_of(pp=2)) or "")
    assert Straggler().refusal(job_of(pp=2, tp=2)) is None
    assert "no rank 2" in (Straggler(rank=2).refusal(job_of(dp=2)) or "")


def test_a_trace_without_kernels_need_not_tell_how() -> None:
    assert Straggler().reasons_on("cpu") == ()
    assert Straggler().reasons_on("cuda")
