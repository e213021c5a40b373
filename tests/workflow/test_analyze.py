"""From files to a saved analysis: what is used, what is reported, and what is refused in one line."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.documents.analysis import Analysis
from stepscope.core.errors import DataError, TruncatedTraceError
from stepscope.core.vocabulary import Cause, TimeCategory
from stepscope.store.runs import has_current_analysis, load_analysis, load_timeline
from stepscope.workflow.analyze import analyze
from stepscope.workflow.what_if import what_if
from tests.workflow.written_traces import STEPS, trace_document, write_straggling_job, write_trace


def codes(analysis: Analysis) -> list[str]:
    return [notice.code for notice in analysis.warnings]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_straggling_job(tmp_path / "job")


def test_a_folder_of_ranks_is_one_job(job: Path) -> None:
    analysis = analyze([str(job)]).analysis
    assert analysis.job.ranks == [0, 1]
    assert analysis.job.num_steps == STEPS
    assert analysis.verdict.cause is Cause.STRAGGLER
    assert analysis.verdict.ranks == [1]
    wait_us = analysis.ranks[0].ledger[TimeCategory.WAIT] * analysis.ranks[0].window_ms * 1e3
    assert wait_us == pytest.approx(STEPS * 45)
    assert codes(analysis) == []


def test_a_file_that_cannot_be_used_is_named_and_the_rest_is_analysed(job: Path) -> None:
    (job / "rank2.json").write_text("")
    (job / "rank3.json").write_text("no trace at all")
    (job / "rank4.json").write_text(json.dumps({"traceEvents": []}))
    analysis = analyze([str(job)]).analysis
    assert analysis.job.ranks == [0, 1]
    assert codes(analysis) == ["unusable_file"] * 3
    for name, notice in zip(("rank2", "rank3", "rank4"), analysis.warnings, strict=True):
        assert name in notice.message
        assert "\n" not in notice.message


def test_two_different_files_of_one_rank_are_refused(job: Path) -> None:
    write_trace(job / "other_rank0.json", 0, later_us=500.0)
    with pytest.raises(DataError, match=r"says it is rank 0, and so does .*other_rank0\.json") as caught:
        analyze([str(job)])
    assert caught.value.exit_code == 3


def test_a_copy_of_a_file_is_said_and_left_out(job: Path) -> None:
    write_trace(job / "copy_of_rank0.json", 0)
    analysis = analyze([str(job)]).analysis
    assert analysis.job.ranks == [0, 1]
    assert any("is a copy of" in notice.message for notice in analysis.warnings)


def test_a_rank_recorded_at_another_time_is_left_out(job: Path) -> None:
    write_trace(job / "rank1.json.gz", 1, later_us=1e9)
    analysis = analyze([str(job)]).analysis
    assert analysis.job.ranks == [1]
    assert "other_time" in codes(analysis)


def test_nameless_files_of_different_times_are_not_one_job(tmp_path: Path) -> None:
    write_trace(tmp_path / "a.json", None)
    write_trace(tmp_path / "b.json", None, later_us=1e9)
    with pytest.raises(DataError, match="does not overlap in time"):
        analyze([str(tmp_path)])


def test_hidden_files_are_some_writers_unfinished_ones(job: Path) -> None:
    write_trace(job / ".rank0.json.gz.8104.json", 0, later_us=500.0)
    assert analyze([str(job)]).analysis.job.ranks == [0, 1]


def test_files_that_do_not_tell_their_rank_take_those_that_are_free(tmp_path: Path) -> None:
    write_trace(tmp_path / "a.json", None)
    write_trace(tmp_path / "b.json", 0)
    write_trace(tmp_path / "c.json", None)
    analysis = analyze([str(tmp_path)]).analysis
    assert analysis.job.ranks == [0, 1, 2]
    assert codes(analysis).count("rank_assumed") == 2


def test_one_file_that_does_not_tell_its_rank_is_rank_0_without_a_word(tmp_path: Path) -> None:
    analysis = analyze([str(write_trace(tmp_path / "trace.json", None))]).analysis
    assert analysis.job.ranks == [0]
    assert "rank_assumed" not in codes(analysis)


@pytest.mark.parametrize("content", [b"", b"   \n", b"no trace", b"[1, 2]", b'{"nodes": []}', b'{"traceEvents": []}'])
def test_a_lone_file_that_is_no_trace_is_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        analyze([str(path)])
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_several_files_of_which_none_is_a_trace_are_one_line_that_names_the_first(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"rank{number}.json").write_text("{}")
    with pytest.raises(DataError, match=r"none of 3 files can be used; the first: .*rank0\.json"):
        analyze([str(tmp_path)])


@pytest.mark.parametrize("share", [0.5, 0.8, 0.95])
def test_a_gzip_cut_short_is_said_and_left_out(job: Path, share: float) -> None:
    """A missing kernel would pass for a late host: that rank's time cannot be booked."""
    whole = gzip.compress(json.dumps(trace_document(1)).encode(), compresslevel=0)
    (job / "rank1.json.gz").write_bytes(whole[: int(len(whole) * share)])
    analysis = analyze([str(job)]).analysis
    assert analysis.job.ranks == [0]
    assert analysis.trace_quality.truncated_files == 1
    assert any("rank1.json.gz: ends too early" in notice.message for notice in analysis.warnings)


def test_a_lone_file_cut_short_is_one_line(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "rank0.json")
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(TruncatedTraceError, match="ends too early") as caught:
        analyze([str(path)])
    assert caught.value.exit_code == 3


def test_a_gzip_cut_before_its_first_event_is_one_line(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "rank0.json.gz")
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(TruncatedTraceError, match="ends too early, before its first event") as caught:
        analyze([str(path)])
    assert "\n" not in str(caught.value)


def test_a_missing_rank_is_said_and_its_arrivals_stay_unknown(job: Path) -> None:
    (job / "rank1.json.gz").unlink()
    analysis = analyze([str(job)]).analysis
    assert "missing_ranks" in codes(analysis)
    assert analysis.ledger[TimeCategory.WAIT] == 0
    assert analysis.ledger[TimeCategory.COMMUNICATION_UNSPLIT] > 0


def run_directory(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    for rank in (0, 1):
        write_trace(run / "traces" / "step10" / f"rank{rank}.json.gz", rank)
    manifest = {
        "schema": "stepscope.run/1", "run": "example", "host": "node0", "world_size": 2, "mesh": {"dp": 2},
        "num_cpus": 8, "versions": {}, "environment": {}, "attempts": [], "unprofiled_step_ms": 0.08,
    }  # fmt: skip
    (run / "run.json").write_text(json.dumps(manifest))
    return run


def test_a_run_directory_keeps_its_analysis_and_lends_its_manifest(tmp_path: Path) -> None:
    run = run_directory(tmp_path)
    result = analyze([str(run)])
    assert result.kept_in == run
    assert (run / "analysis.json").is_file()
    assert (run / "timeline.json").is_file()
    assert result.analysis.job.mesh.dp == 2
    assert result.analysis.job.unprofiled_step_ms == 0.08
    assert result.analysis.trace_quality.profiler_distortion == pytest.approx(0.1 / 0.08 - 1)


def test_nothing_is_kept_on_request_for_whole_files_and_outside_runs(tmp_path: Path, job: Path) -> None:
    run = run_directory(tmp_path)
    assert analyze([str(run)], keep=False).kept_in is None
    assert analyze([str(run)], whole_file=True).kept_in is None
    assert analyze([str(job)]).kept_in is None
    assert not (run / "analysis.json").exists()


def test_a_rank_without_a_single_step_is_named(tmp_path: Path) -> None:
    run = run_directory(tmp_path)
    (run / "steps").mkdir()
    (run / "steps" / "rank0.jsonl").write_text('{"index": 0, "start_ns": 1, "end_ns": 2}\n')
    (run / "steps" / "rank1.jsonl").touch()
    notices = {notice.code: notice.message for notice in analyze([str(run)]).analysis.warnings}
    assert notices["silent_ranks"].startswith("rank 1 left no step in steps/")


def test_what_the_step_files_lack_is_said(tmp_path: Path) -> None:
    run = run_directory(tmp_path)
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(manifest | {"world_size": 4}))
    (run / "steps").mkdir()
    for rank, num_steps in enumerate((100, 100, 12)):
        lines = [f'{{"index": {i}, "start_ns": {i * 100}, "end_ns": {i * 100 + 100}}}\n' for i in range(num_steps)]
        (run / "steps" / f"rank{rank}.jsonl").write_text("".join(lines) + "no step\n" * (20 if rank == 1 else 0))
    notices = {notice.code: notice.message for notice in analyze([str(run)]).analysis.warnings}
    assert notices["silent_ranks"].startswith("rank 3 left no step in steps/")
    assert notices["short_ranks"] == "rank 2 recorded at most 12 steps, the others mostly 100"
    assert notices["unreadable_lines"].endswith("rank1.jsonl: 20 lines are not steps and are left out")


def _untraced(tmp_path: Path) -> Path:
    """A run that waits for data in 60% of its time, without a trace."""
    run = run_directory(tmp_path)
    shutil.rmtree(run / "traces")
    (run / "steps").mkdir()
    lines = [
        json.dumps({"index": i, "start_ns": i * 10**8, "end_ns": (i + 1) * 10**8, "data_wait_ns": 6 * 10**7})
        for i in range(20)
    ]
    for rank in (0, 1):
        (run / "steps" / f"rank{rank}.jsonl").write_text("\n".join(lines) + "\n")
    return run


def test_a_run_without_traces_is_analysed_by_its_steps_and_kept(tmp_path: Path) -> None:
    run = _untraced(tmp_path)
    result = analyze([str(run)])
    job, verdict = result.analysis.job, result.analysis.verdict
    assert verdict.cause is Cause.DATA_LOADING
    assert verdict.share == pytest.approx(0.6)
    assert (job.world_size, job.ranks, job.missing_ranks, job.num_steps) == (2, [0, 1], [], 0)
    assert job.mesh.dp == 2
    assert result.kept_in == run
    assert load_analysis(run) == result.analysis
    assert load_timeline(run) == []


def test_new_steps_make_the_kept_analysis_of_a_run_without_traces_old(tmp_path: Path) -> None:
    run = _untraced(tmp_path)
    analyze([str(run)])
    assert has_current_analysis(run)
    later = (run / "analysis.json").stat().st_mtime_ns + 1
    os.utime(run / "steps" / "rank1.jsonl", ns=(later, later))
    assert not has_current_analysis(run)


@pytest.mark.parametrize("choice", [{"capture": 1}, {"whole_file": True}])
def test_what_needs_a_trace_is_refused_without_one(tmp_path: Path, choice: dict[str, Any]) -> None:
    run = _untraced(tmp_path)
    with pytest.raises(DataError, match="has no captured traces yet"):
        analyze([str(run)], **choice)
    with pytest.raises(DataError, match="has no captured traces yet"):
        what_if([str(run)])


def test_a_run_without_traces_and_steps_is_refused(tmp_path: Path) -> None:
    run = run_directory(tmp_path)
    shutil.rmtree(run / "traces")
    with pytest.raises(DataError, match="has no captured traces yet"):
        analyze([str(run)])


def test_a_broken_manifest_is_said_and_the_traces_are_analysed(tmp_path: Path) -> None:
    run = run_directory(tmp_path)
    (run / "run.json").write_text("{")
    analysis = analyze([str(run)]).analysis
    assert codes(analysis) == ["unusable_file"]
    assert analysis.job.mesh.dp is None


def test_progress_is_told_before_each_file(job: Path) -> None:
    told: list[tuple[int, int, str]] = []
    analyze([str(job)], on_progress=lambda done, total, path: told.append((done, total, Path(path).name)))
    assert told == [(0, 2, "rank0.json.gz"), (1, 2, "rank1.json.gz")]


def test_the_same_files_give_the_same_analysis(job: Path) -> None:
    assert analyze([str(job)]).analysis == analyze([str(job)]).analysis
