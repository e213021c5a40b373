"""The upload beside training: to the end of training and of what it wrote, and what is then removed on the node."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from stepscope.core.protocol.upload_state import UploadStage, note_training_over, read_upload_progress
from stepscope.workflow.stored_runs.sizes import PRUNED_MARK
from stepscope.workflow.transfer import beside_training
from stepscope.workflow.transfer.beside_training import UploadBesideTraining
from tests.workflow.stored_runs.kept_runs import DAY, write_run
from tests.workflow.transfer.object_store import contents, folder_contents

_NOBODY = 1 << 30
"""Not the parent of this process: training that has ended."""


@pytest.fixture
def memory() -> Iterator[str]:
    store = fsspec.filesystem("memory")
    store.store.clear()
    yield "memory://bucket/runs"
    store.store.clear()


def _age(path: Path, days: float) -> None:
    for each in path.rglob("*"):
        os.utime(each, (time.time() - days * DAY,) * 2)


def test_what_training_left_arrives_and_large_files_go(memory: str, tmp_path: Path) -> None:
    run, expected = write_run(tmp_path / "r"), folder_contents(tmp_path / "r")
    assert UploadBesideTraining(run, memory, _NOBODY, keep=False, reduces=False).run()
    assert contents(f"{memory}/r") == expected
    assert sorted(folder_contents(run)) == ["run.json", "steps/rank0.jsonl"]
    progress = read_upload_progress(run)
    assert progress is not None
    assert progress.stage is UploadStage.FINISHED


def test_folders_of_runs_that_have_arrived_go_after_a_day(memory: str, tmp_path: Path) -> None:
    for name in ("old", "young", "elsewhere", "now"):
        write_run(tmp_path / name)
    for name in ("old", "young"):
        assert UploadBesideTraining(tmp_path / name, memory, _NOBODY, keep=True, reduces=False).run()
    _age(tmp_path / "old", 2.0)
    _age(tmp_path / "elsewhere", 9.0)  # was never uploaded
    (tmp_path / f"{PRUNED_MARK}-x").mkdir()
    assert UploadBesideTraining(tmp_path / "now", memory, _NOBODY, keep=False, reduces=False).run()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "now", "young"]


_WRITER = """
import sys
from pathlib import Path
from stepscope.training.run.run_files import WholeLinesFile
file = WholeLinesFile(Path(sys.argv[1]))
print("open", flush=True)
for line in sys.stdin:
    file.write(line.encode())
"""


def test_lines_are_uploaded_while_they_are_written_and_to_the_last(
    memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside_training, "TURN_SECONDS", 0.1)
    run = write_run(tmp_path / "r")
    steps = run / "steps" / "rank0.jsonl"
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(steps)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdin is not None
        writer.stdout.readline()
        # this process is the parent that is alive: the end is that of the writer's lock
        upload = UploadBesideTraining(run, memory, os.getppid(), keep=True, reduces=False)
        monkeypatch.setattr(upload, "_is_parent_alive", lambda: not upload._has_been_written)
        thread = threading.Thread(target=upload.run, daemon=True)
        thread.start()
        until = time.monotonic() + 30.0
        while not contents(f"{memory}/r") and time.monotonic() < until:
            time.sleep(0.05)
        writer.stdin.write('{"index": 1, "start_ns": 3, "end_ns": 4}\n')
        writer.stdin.close()
    thread.join(30.0)
    assert contents(f"{memory}/r") == folder_contents(run)
    assert steps.read_bytes().count(b"\n") == 2


def test_training_that_was_over_before_it_was_seen(memory: str, tmp_path: Path) -> None:
    upload = UploadBesideTraining(write_run(tmp_path / "r"), memory, os.getppid(), keep=True, reduces=False)
    assert not upload._is_over()
    (tmp_path / "r" / ".upload-over").write_text(f"{os.getppid()}\n")
    assert upload._is_over()
    note_training_over(tmp_path / "r")  # another process of this node
    assert upload._is_over()


def test_a_folder_that_is_deleted_ends_its_upload(memory: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "r")
    upload = UploadBesideTraining(run, memory, os.getppid(), keep=True, reduces=False)
    run.rename(tmp_path / "gone")
    assert not upload._upload()
    assert not run.exists()


def test_a_store_that_fails_is_tried_again_and_then_left(
    memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "r")
    upload = UploadBesideTraining(run, memory, _NOBODY, keep=False, reduces=False)
    tries: list[float] = []

    def fail(*_: object, **__: object) -> bool:
        tries.append(time.monotonic())
        raise OSError(5, "no answer")

    monkeypatch.setattr(beside_training, "AFTER_TRAINING_SECONDS", 3.0)
    monkeypatch.setattr(upload._uploader, "turn", fail)
    assert not upload._upload()
    progress = read_upload_progress(run)
    assert progress is not None
    assert progress.stage is UploadStage.FAILED
    assert "no answer" in (progress.problem or "")
    assert 2 <= len(tries) <= 6
    assert (run / "traces").is_dir()
