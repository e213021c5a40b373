"""`analyze` of a job that still runs: what is whole counts, and the job is said to run."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from stepscope.core.documents.run_directory import Attempt, RankFile
from stepscope.workflow.analyze import RecentSteps, analyze
from tests.training.gloo_ranks import training
from tests.workflow.written_runs import write_run


def _messages(run: Path, code: str, recent: RecentSteps | None = None) -> list[str]:
    warnings = analyze([str(run)], keep=False, recent=recent).analysis.warnings
    return [notice.message for notice in warnings if notice.code == code]


def _num_lines(run: Path, rank: int) -> int:
    file = run / RankFile.STEPS.path(rank)
    return file.read_bytes().count(b"\n") if file.exists() else 0


def test_a_real_job_of_two_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run = tmp_path / "runs" / "r"
    with training(tmp_path, tmp_path / "no-agent", 2):
        deadline = time.monotonic() + 60
        while min(_num_lines(run, rank) for rank in range(2)) < 30 or not list(run.glob("traces/*/*.json.gz")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        first = analyze([str(run)]).analysis
        (note,) = _messages(run, "still_running")
        assert first.job_time is not None
        assert note.startswith("the job still runs: ")
    last = analyze([str(run)]).analysis
    assert last.job_time is not None
    assert last.job_time.num_steps > first.job_time.num_steps > 3
    assert last.job.ranks == first.job.ranks == [0, 1]
    assert _messages(run, "still_running") == []


def test_a_line_that_is_half_written_is_left_for_later(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", num_steps=30, ranks=(0, 1), world_size=3)
    with (run / RankFile.STEPS.path(1)).open("ab") as file:
        file.write(b'{"index": 30, "start_ns": 17')
    (run / RankFile.STEPS.path(2)).touch()  # it has begun and ended no step
    (run / "traces/step5").mkdir(parents=True)
    (run / "traces/step5/.rank0.json.gz.77.part").write_bytes(b"\x1f\x8b")
    analysis = analyze([str(run)]).analysis
    codes = {notice.code for notice in analysis.warnings}
    assert analysis.job_time is not None
    assert analysis.job_time.num_steps == 30
    assert analysis.job.missing_ranks == [2]
    assert {"still_running", "silent_ranks"} <= codes
    assert not codes & {"unreadable_lines", "unusable_file", "unusable_capture"}
    assert "30 steps so far" in _messages(run, "still_running")[0]


@pytest.mark.parametrize(("end_ns", "age_seconds"), [(1, 0.0), (None, 600.0)])
def test_an_ended_or_silent_job_does_not_run(tmp_path: Path, end_ns: int | None, age_seconds: float) -> None:
    run = write_run(tmp_path / "r", num_steps=30, age_seconds=age_seconds)
    manifest = json.loads((run / "run.json").read_bytes())
    attempt = Attempt(**manifest["attempts"][0])
    manifest["attempts"] = [asdict(attempt) | {"end_ns": end_ns and time.time_ns()}]
    (run / "run.json").write_text(json.dumps(manifest))
    assert _messages(run, "still_running") == []


def test_recent_steps_are_the_latest_of_all_ranks(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", num_steps=400, ranks=(0, 1))
    assert analyze([str(run)], keep=False, recent=RecentSteps(5.0)).analysis.job_time.num_steps == 50  # type: ignore[union-attr]
    assert analyze([str(run)], keep=False, recent=RecentSteps(0.1)).analysis.job_time.num_steps == 20  # type: ignore[union-attr]
    few_bytes = RecentSteps(1e9, most_bytes=4000)
    num_steps = analyze([str(run)], keep=False, recent=few_bytes).analysis.job_time.num_steps  # type: ignore[union-attr]
    assert 5 < num_steps < 40
    assert _messages(run, "unreadable_lines", few_bytes) == []


def test_recent_steps_see_what_all_steps_hide(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", num_steps=1000, waits_ns=lambda step: 60_000_000 if step >= 980 else 0)
    whole = analyze([str(run)], keep=False).analysis.verdict
    recent = analyze([str(run)], keep=False, recent=RecentSteps(1.0)).analysis.verdict
    assert whole.bottleneck is not True or whole.cause != "data_loading"
    assert (recent.cause, recent.bottleneck) == ("data_loading", True)
