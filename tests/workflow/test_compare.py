"""The two sides of a comparison are found, read and analysed as the command line says."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from stepscope.core.documents.comparison import Change, GateOutcome
from stepscope.core.documents.run_directory import RankFile, RunManifest
from stepscope.core.errors import DataError, UsageError
from stepscope.store.documents import encode_document
from stepscope.workflow.analyze import analyze
from stepscope.workflow.compare import compare, find_runs
from tests.workflow.written_traces import write_trace


def write_job(folder: Path, *, compute_us: int = 30) -> Path:
    """A folder of two ranks' traces."""
    for rank in range(2):
        write_trace(folder / f"rank{rank}.json.gz", rank, compute_us=compute_us)
    return folder


def write_run(folder: Path, *, step_ms: float, num_steps: int = 120, tokens: int = 4096) -> Path:
    """A run directory with a capture, a manifest and telemetry."""
    write_job(folder / "traces" / "step3")
    manifest = RunManifest(folder.name, "node0", 2, {"dp": 2}, 8, {"torch": "2.13.0"}, {}, [])
    (folder / "run.json").write_bytes(msgspec.json.encode(manifest))
    for rank in range(2):
        path = folder / RankFile.STEPS.path(rank)
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(line(index, step_ms, tokens) for index in range(num_steps)) + '{"index": 12')
    return folder


def line(index: int, step_ms: float, tokens: int) -> str:
    captured = 3 <= index < 6
    start = 10**18 + round(index * step_ms * 1e6)
    took = step_ms * (3 if captured else 1) + 0.01 * (index % 5)
    record = {
        "index": index,
        "start_ns": start,
        "end_ns": start + round(took * 1e6),
        "captured": captured,
        "state": "active" if captured else "warmup" if index == 2 else "wait",
        "tokens": tokens,
        "memory_peak_bytes": 1000 + index,
        "loss": None,
    }
    return json.dumps(record) + "\n"


def test_folders_of_traces_are_analysed_on_the_fly_and_nothing_is_written(tmp_path: Path) -> None:
    a, b = write_job(tmp_path / "a"), write_job(tmp_path / "b")
    found = compare(str(a), str(b))
    assert found.step_time.a == pytest.approx(0.1)
    assert found.step_time.state is Change.NOT_SEEN
    assert sorted(path.name for path in a.iterdir()) == ["rank0.json.gz", "rank1.json.gz"]


def test_saved_analyses_are_read(tmp_path: Path) -> None:
    analysis = analyze([str(write_job(tmp_path / "a"))]).analysis
    saved = tmp_path / "saved.json"
    saved.write_bytes(encode_document(analysis))
    pretty = tmp_path / "pretty.json"
    pretty.write_text(json.dumps(json.loads(saved.read_bytes()), indent=2, sort_keys=True))
    assert compare(str(saved), str(pretty)).step_time.change == 0.0


def test_telemetry_counts_settled_unprofiled_steps_after_the_warm_up(tmp_path: Path) -> None:
    a, b = write_run(tmp_path / "a", step_ms=10.0), write_run(tmp_path / "b", step_ms=11.0)
    found = compare(str(a), str(b), fail_on=["step_time:+3%"])
    # of 120 steps: not the first, not the warm-up and the three captured, not the one after them; a tenth is skipped
    assert (found.a.step_source, found.a.num_steps) == ("unprofiled", [104])
    assert found.step_time.relative == pytest.approx(1 / 10.02, rel=1e-6)  # the median step is 10.02 ms
    assert found.gates[0].outcome is GateOutcome.FAILED
    assert found.memory[0].b == 1119.0
    assert found.warnings == []


def test_a_kept_analysis_is_used_until_a_newer_capture_comes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", step_ms=10.0)
    analyze([str(run)])
    kept = run / "analysis.json"
    kept.write_bytes(kept.read_bytes().replace(b'"num_steps":3', b'"num_steps":2'))
    folder_ns = (run / "traces" / "step3").stat().st_mtime_ns
    os.utime(kept, ns=(folder_ns + 10**9, folder_ns + 10**9))
    assert compare(str(run), str(run)).warnings == []
    kept.write_bytes(b"{")
    os.utime(kept, ns=(folder_ns + 10**9, folder_ns + 10**9))
    assert "analysed_again" in [notice.code for notice in compare(str(run), str(run)).warnings]


def test_a_set_is_a_list_a_directory_or_a_glob(tmp_path: Path) -> None:
    runs = [str(write_job(tmp_path / "set" / name)) for name in ("r1", "r2", "r3")]
    (tmp_path / "set" / "notes.txt").write_text("")
    assert find_runs(str(tmp_path / "set")) == runs
    assert find_runs(",".join(runs[:2])) == runs[:2]
    assert find_runs(str(tmp_path / "set" / "r[23]")) == runs[1:]
    assert find_runs(f"{runs[0]},{tmp_path}/set/r*") == runs
    odd = write_job(tmp_path / "with, comma")
    assert find_runs(str(odd)) == [str(odd)]


def test_one_bad_run_of_a_set_is_a_warning(tmp_path: Path) -> None:
    good = write_job(tmp_path / "set" / "good")
    bad = write_job(tmp_path / "set" / "bad")
    for path in bad.iterdir():
        path.write_text("nothing")
    found = compare(str(tmp_path / "set"), str(good))
    assert found.a.runs == ["good"]
    assert "unusable_run" in [notice.code for notice in found.warnings]


@pytest.mark.parametrize("side", ["absent", "empty", "absent*", "a,absent", ""])
def test_a_side_without_a_run_is_one_line(side: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_job(tmp_path / "a")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError) as caught:
        compare("a", side)
    assert "\n" not in str(caught.value)


def test_a_wrong_gate_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ee Gate metrics \(documentation\)"):
        compare(str(tmp_path / "absent"), str(tmp_path / "absent"), fail_on=["speed:+1%"])


def test_runs_without_traces_are_compared_by_their_steps(tmp_path: Path) -> None:
    for name, step_ms in (("a", 10.0), ("b", 12.0)):
        write_run(tmp_path / name, step_ms=step_ms)
        shutil.rmtree(tmp_path / name / "traces")
    found = compare(str(tmp_path / "a"), str(tmp_path / "b"), fail_on=["step_time:+3%", "host_bound:+3%"])
    assert found.step_time.state is Change.SLOWER
    assert [gate.outcome for gate in found.gates] == [GateOutcome.FAILED, GateOutcome.NOT_MEASURED]
    assert not found.causes
    assert not found.headings


def test_a_checkpoint_that_few_steps_have_is_found_with_the_setting_that_differs(tmp_path: Path) -> None:
    for name, every, save_steps in (("a", 0, 500), ("b", 40, 40)):
        folder = write_run(tmp_path / name, step_ms=10.0)
        lines = [json.loads(line(index, 10.0, 1)) for index in range(120)]
        for step in lines[5 :: every or 1000]:
            step["phases"] = {"checkpoint": 500_000_000}
            step["end_ns"] += 500_000_000 if every else 0
        if not every:
            lines[5].pop("phases")
        for rank in range(2):
            text = "".join(f"{json.dumps(step)}\n" for step in lines)
            (folder / RankFile.STEPS.path(rank)).write_text(text)
        manifest = json.loads((folder / "run.json").read_bytes())
        trainer = {"name": "transformers", "version": "5", "arguments": {"save_steps": save_steps, "optim": "a"}}
        manifest["settings"] = {"trainer": trainer, "num_threads": save_steps}
        (folder / "run.json").write_text(json.dumps(manifest))
    found = compare(str(tmp_path / "a"), str(tmp_path / "b"), fail_on=["checkpoint:+5%", "step_time_mean:+5%"])
    assert found.step_time.state is Change.NOT_SEEN
    assert found.step_time_mean.state is Change.SLOWER
    assert (found.recorded[0].name, found.recorded[0].ms.state) == ("checkpoint", Change.SLOWER)
    assert "checkpoint +" in found.summary
    assert [row.name for row in found.settings] == ["trainer.save_steps", "num_threads"]
    assert found.settings[0].explains_ms > found.settings[1].explains_ms
    assert [gate.outcome for gate in found.gates] == [GateOutcome.FAILED, GateOutcome.FAILED]
