"""Goodput of a real job under torchrun whose ranks are killed, the fast form: one restart."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.accuracy.goodput import Job, is_within, reported, run_job, truth


def test_lost_steps_are_exact_and_recovery_is_within_a_second(tmp_path: Path) -> None:
    job = Job(num_steps=20, every=5, step_ms=10.0, kills=[(12, (0, 1))])
    run_job(job, tmp_path)
    (expected,) = truth(tmp_path, job)
    (measured,), total = reported(tmp_path)
    assert expected.num_lost == 3
    assert is_within(expected, measured), (expected, measured)
    assert total == pytest.approx(1)
