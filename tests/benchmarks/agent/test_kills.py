"""Agents killed at random moments lose no event and double none: a fast version of the benchmark."""

from __future__ import annotations

from pathlib import Path

from benchmarks.agent.kills import count_errors


def test_no_event_is_lost_or_doubled_by_kills(tmp_path: Path) -> None:
    result = count_errors(tmp_path, kills=3, num_gpus=2, seed=7, is_quick=True)
    assert result.had == result.found
    assert result.num_doubled_ids == 0
    assert result.totals == result.events
    assert result.num_events > 0
