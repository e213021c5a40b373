"""A job's cause is that of the GPU that the others wait for."""

from __future__ import annotations

import pytest

from stepscope.analyzer.fleet import GpuSample, classify_gpu, classify_job
from stepscope.core.vocabulary import Cause
from tests.analyzer.fleet.samples import COMPUTING, H100, HELD, LAUNCHING, SAVING, SPINNING, STARVED, WAITING, series


def _job(*samples: GpuSample) -> list[Cause]:
    told = classify_job([classify_gpu(series(sample, count=60), H100) for sample in samples])
    return [told.cause]


@pytest.mark.parametrize(
    ("samples", "cause"),
    [
        ([COMPUTING, COMPUTING], Cause.COMPUTE_BOUND),
        ([WAITING, WAITING, WAITING], Cause.COMMUNICATION),
        ([WAITING, COMPUTING, WAITING], Cause.STRAGGLER),
        ([WAITING, STARVED, WAITING], Cause.DATA_LOADING),
        ([WAITING, LAUNCHING], Cause.HOST_BOUND),
        ([WAITING, HELD], Cause.HOST_BOUND),
        ([SPINNING, HELD], Cause.HANG),
        ([SPINNING, SAVING, SPINNING], Cause.CHECKPOINT),
        ([HELD, HELD], Cause.IDLE),
    ],
)
def test_jobs(samples: list[GpuSample], cause: Cause) -> None:
    assert _job(*samples) == [cause]


def test_the_gpu_that_is_waited_for_is_named() -> None:
    told = classify_job([classify_gpu(series(one, count=60), H100) for one in (WAITING, WAITING, COMPUTING, WAITING)])
    assert told.evidence[0].ranks == [2]
    assert "GPU 2 of 4" in told.summary


def test_a_job_without_gpus_has_no_class() -> None:
    with pytest.raises(ValueError, match="without GPUs"):
        classify_job([])
