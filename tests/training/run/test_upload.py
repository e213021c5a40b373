"""`profile(out=URL)`: the folder on the node, the process beside training, and what the end of a training waits for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.protocol.upload_state import (
    UploadProgress,
    UploadStage,
    is_training_over,
    note_training_over,
    read_upload_progress,
)
from stepscope.training.run.upload import is_url, spool_folder

pytest.importorskip("fsspec", reason="fsspec is not installed")

_ROOT = Path(__file__).resolve().parents[3]
_TRAIN = """
import sys, time
import stepscope
with stepscope.profile(run="gpt", out=sys.argv[1], live_verdict="off") as prof:
    for _ in range(int(sys.argv[2])):
        time.sleep(0.05)
        prof.step(loss=0.1)
print(prof.where)
"""


def _start(
    url: str, spool: Path, *, steps: int = 6, rank: int = 0, size: int = 1, more: Mapping[str, str] = {}
) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STEPSCOPE_", "AWS_"))}
    environment = kept | {
        "PYTHONPATH": str(_ROOT),
        "STEPSCOPE_SPOOL": str(spool),
        "STEPSCOPE_UPLOAD_WAIT": "60",
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": "0",
    }
    return subprocess.Popen(
        [sys.executable, "-c", _TRAIN, url, str(steps)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, **more},
        cwd=spool.parent,
    )


def _ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    output, errors = process.communicate(timeout=90)
    assert process.returncode == 0, errors
    return output, errors


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_two_nodes_without_a_common_folder_make_one_run(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/there"
    both = [_start(url, tmp_path / f"node{rank}", rank=rank, size=2) for rank in (0, 1)]
    for process in both:
        output, errors = _ended(process)
        assert (output, "not all" in errors) == (f"{url}/gpt\n", False), errors
    run = tmp_path / "there" / "gpt"
    for rank in (0, 1):
        assert [line["index"] for line in _lines(run / "steps" / f"rank{rank}.jsonl")] == list(range(6))
    records = [json.loads(path.read_bytes()) for path in (run / "uploads").iterdir()]
    assert sorted((record["state"], record["ranks"]) for record in records) == [("finished", [0]), ("finished", [1])]
    assert json.loads((run / "run.json").read_bytes())["attempts"][0]["ended"] == "finished"


def test_an_attempt_that_follows_on_a_node_goes_on_from_its_records(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/there"
    for _ in range(2):
        _, errors = _ended(_start(url, tmp_path / "node"))
        assert "not all" not in errors, errors
    run = tmp_path / "there" / "gpt"
    assert [line["index"] for line in _lines(run / "steps" / "rank0.jsonl")] == list(range(12))
    assert len(json.loads((run / "run.json").read_bytes())["attempts"]) == 2


def test_ranks_of_one_node_share_an_upload(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/there"
    ranks = [_start(url, tmp_path / "node", rank=rank, size=3, steps=6 + 30 * rank) for rank in range(3)]
    for process in ranks:
        _, errors = _ended(process)
        assert "not all" not in errors, errors
    run = tmp_path / "there" / "gpt"
    assert [len(_lines(run / "steps" / f"rank{rank}.jsonl")) for rank in range(3)] == [6, 36, 66]
    (record,) = [json.loads(path.read_bytes()) for path in (run / "uploads").iterdir()]
    assert (record["state"], record["ranks"]) == ("finished", [0, 1, 2])
    assert json.loads((run / "run.json").read_bytes())["attempts"][0]["ended"] == "finished"


def test_a_store_that_does_not_answer_holds_nothing_up(tmp_path: Path) -> None:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    nowhere = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    nowhere |= {"STEPSCOPE_UPLOAD_WAIT": "2"}
    process = _start("s3://bucket/runs", tmp_path / "node", more=nowhere)
    began = time.monotonic()
    _, errors = _ended(process)
    assert time.monotonic() - began < 80.0  # the machine may be busy; nothing waits for minutes
    last = errors.splitlines()[-1]
    assert last.startswith("stepscope: not all of the run has arrived at s3://bucket/runs/gpt"), errors
    assert "stepscope runs upload" in last
    (steps,) = (tmp_path / "node").rglob("steps/rank0.jsonl")
    assert len(_lines(steps)) == 6
    _kill_beside(steps.parent.parent)


def _kill_beside(folder: Path) -> None:
    """End the process that still uploads a folder, which the test's own training has left."""
    for each in Path("/proc").iterdir():
        try:
            arguments = (each / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(folder).encode() in arguments and b"stepscope.workflow.transfer.upload_process" in arguments:
            os.kill(int(each.name), signal.SIGKILL)


def test_a_missing_driver_is_one_line_and_keeps_the_files(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "s3fs.py").write_text("raise ModuleNotFoundError('No module named s3fs', name='s3fs')")
    path = f"{tmp_path / 'broken'}{os.pathsep}{_ROOT}"
    _, errors = _ended(_start("s3://bucket/runs", tmp_path / "node", steps=60, more={"PYTHONPATH": path}))
    lines = [line for line in errors.splitlines() if "s3fs" in line]
    assert len(lines) == 1, errors
    assert 'pip install "stepscope[s3]"' in lines[0]
    assert "stepscope runs upload" in lines[0]
    assert list((tmp_path / "node").rglob("steps/rank0.jsonl"))


@pytest.mark.parametrize(
    ("out", "is_one"),
    [("s3://bucket/runs", True), ("file:///mnt/runs", True), ("runs", False), ("/runs", False), ("s3:/b", False)],
)
def test_what_is_a_url(out: str, is_one: bool) -> None:
    assert is_url(out) is is_one
    assert is_url(Path("runs")) is False


def test_runs_of_each_url_have_a_folder_of_their_own(tmp_path: Path) -> None:
    first = spool_folder("s3://bucket/runs", tmp_path / "spool")
    assert first == spool_folder("s3://bucket/runs/", tmp_path / "spool")
    assert first != spool_folder("s3://other/runs", tmp_path / "spool")
    assert first.parent == tmp_path / "spool"
    assert first.name.startswith("bucket-runs-")


def test_a_folder_of_others_in_the_temporary_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STEPSCOPE_SPOOL", raising=False)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    folder = spool_folder("s3://bucket/runs", None).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="STEPSCOPE_SPOOL"):
        spool_folder("s3://bucket/runs", None)
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(PermissionError):
        spool_folder("s3://bucket/runs", None)


def test_progress_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_upload_progress(tmp_path) is None
    progress = UploadProgress(UploadStage.WAITING, 3, 12, "no answer", 7)
    progress.write(tmp_path)
    assert read_upload_progress(tmp_path) == progress


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"stage": "x", "files": 1}', "\0"])
def test_a_damaged_progress_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / ".upload-state").write_text(content)
    assert read_upload_progress(tmp_path) is None


def test_the_end_of_training_is_that_of_one_process(tmp_path: Path) -> None:
    assert not is_training_over(tmp_path, os.getpid())
    note_training_over(tmp_path)
    assert is_training_over(tmp_path, os.getpid())
    assert not is_training_over(tmp_path, 1)
