"""A job's time in one line, by category, and as part of its wall-clock time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.core.text.job_time import breakdown, goodput_line, headline, time_name
from stepscope.core.vocabulary import Cause, GoodputClass
from tests.dashboard import example_run as example

TRACES_ALONE = example.make_analysis(example.make_timelines())
JOB = example.with_job_time(TRACES_ALONE)


def test_the_breakdown_adds_up_to_the_mean_step() -> None:
    rows = breakdown(JOB)
    assert time_name(JOB) == "training time"
    assert sum(row.share for row in rows) == pytest.approx(1.0)
    assert sum(row.ms or 0.0 for row in rows) == pytest.approx(190.1)
    assert [row.title for row in rows] == ["Data loading", "Memory-bound", "Compute-bound", "CPU-bound"]


def test_without_records_the_breakdown_is_of_the_profiled_steps_by_cause_with_its_ranks() -> None:
    rows = breakdown(TRACES_ALONE)
    assert time_name(TRACES_ALONE) == "profiled time"
    assert rows == sorted(rows, key=lambda row: -row.share)
    straggler = next(row for row in rows if row.cause is Cause.STRAGGLER)
    found = next(row for row in TRACES_ALONE.root_causes if row.cause is Cause.STRAGGLER)
    assert (straggler.share, straggler.ranks) == (found.fraction, found.ranks)


def test_the_headline_counts_one_and_several() -> None:
    job = TRACES_ALONE.job
    one = replace(TRACES_ALONE, job=replace(job, ranks=[0], world_size=1, num_steps=1, mfu=None))
    assert headline(one) == f"1 rank, NVIDIA H100 80GB HBM3, 1 profiled step of {job.step_ms:,.1f} ms"
    some = replace(TRACES_ALONE, job=replace(job, ranks=[0, 1], world_size=8))
    assert headline(some).startswith("2 of 8 ranks, TP 2 × PP 2 × DP 2, NVIDIA H100 80GB HBM3, 5 profiled steps of ")
    assert headline(JOB).endswith(", 40 steps of 190.1 ms (median 51.0), 5 of them in an analysed trace (MFU 27.1%)")


def test_what_the_gpu_time_went_to_is_one_line() -> None:
    time = JOB.job_time
    assert time is not None
    assert goodput_line(JOB) == "Wall-clock time 9.0 s: training 84.5%, start-up 11.9%, after the last step 3.6%"
    assert goodput_line(replace(JOB, job_time=replace(time, goodput=None))) is None
    shares = {GoodputClass.PRODUCTIVE_TRAINING: 0.75, GoodputClass.RESTART: 0.05, GoodputClass.NO_ATTEMPT: 0.2}
    of_all = replace(JOB, job_time=replace(time, rank_seconds=7_200.0, gpu_time=shares))
    assert goodput_line(of_all) == "Goodput 75.0% of 2.0 GPU-hours; lost: no attempt running 20.0%, restart 5.0%"
