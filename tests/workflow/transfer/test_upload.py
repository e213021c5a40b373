"""Uploads to a real S3 server and to a store in memory: killed and started again, on several nodes, over restarts."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from stepscope.core.documents.stored_runs import RunState
from stepscope.core.documents.upload import UploadState
from stepscope.core.errors import DataError, UnreachableError, UsageError
from stepscope.workflow.stored_runs.prune import list_runs
from stepscope.workflow.transfer import upload_runs as transfer
from stepscope.workflow.transfer.target import NotArrivedError, UploadTarget, content_of
from stepscope.workflow.transfer.upload import GROWING_BYTES_PER_SECOND, NodeUploader
from stepscope.workflow.transfer.upload_runs import upload_runs
from tests.workflow.stored_runs.kept_runs import DAY, write_run
from tests.workflow.transfer.object_store import contents, folder_contents, s3_bucket

pytest.importorskip("s3fs", reason="s3fs is not installed")
pytest.importorskip("moto", reason="moto is not installed")


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with s3_bucket(tmp_path_factory.mktemp("s3")) as settings:
        yield settings


@pytest.fixture
def memory() -> Iterator[str]:
    store = fsspec.filesystem("memory")
    store.store.clear()
    yield "memory://bucket/runs"
    store.store.clear()


def _step(index: int, start_ns: int, **more: object) -> bytes:
    return json.dumps({"index": index, "start_ns": start_ns, "end_ns": start_ns + 1, **more}).encode() + b"\n"


def _node(folder: Path, ranks: list[int], *, has_manifest: bool, seed: int = 0) -> Path:
    """What the ranks of one node wrote of a run of several nodes."""
    rng = random.Random(seed)
    run = write_run(folder / "gpt") if has_manifest else folder / "gpt"
    for rank in ranks:
        for name, content in {
            f"steps/rank{rank}.jsonl": b"".join(_step(index, index) for index in range(50)),
            f"metrics/rank{rank}.jsonl": b"{}\n" * 20,
            f"ranks/rank{rank}.json": b"{}",
            f"traces/step4/rank{rank}.json.gz": rng.randbytes(200_000),
            f"traces/step40/rank{rank}.json.gz": rng.randbytes(3_000),
        }.items():
            (run / name).parent.mkdir(parents=True, exist_ok=True)
            (run / name).write_bytes(content)
    return run


_UPLOAD = "import sys; from stepscope.cli import main; main(['runs', 'upload', sys.argv[1], sys.argv[2]])"


@pytest.mark.usefixtures("bucket")
def test_two_nodes_make_one_run_although_uploads_are_killed(tmp_path: Path) -> None:
    nodes = [
        _node(tmp_path / "a", [0, 1], has_manifest=True, seed=1),
        _node(tmp_path / "b", [2, 3], has_manifest=False, seed=2),
    ]
    expected = folder_contents(*nodes)
    rng = random.Random(7)
    command = [sys.executable, "-c", _UPLOAD]
    for _ in range(3):  # each time killed somewhere else
        both = [
            subprocess.Popen([*command, str(node), "s3://bucket/killed"], stdout=subprocess.DEVNULL) for node in nodes
        ]
        time.sleep(rng.uniform(0.9, 2.0))
        for process in both:
            process.kill()
            process.wait()
        for path, digest in contents("s3://bucket/killed/gpt").items():
            assert digest == expected[path], path  # what is there is whole
    for node in nodes:
        done = subprocess.run([*command, str(node), "s3://bucket/killed"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert contents("s3://bucket/killed/gpt") == expected
    assert folder_contents(*nodes) == expected
    listed = list_runs("s3://bucket/killed").runs
    assert [(run.name, run.num_files) for run in listed] == [("gpt", len(expected) + 2)]
    store = fsspec.filesystem("s3", skip_instance_cache=True)
    assert store.call_s3("list_multipart_uploads", Bucket="bucket").get("Uploads") is None


@pytest.mark.usefixtures("bucket")
def test_parts_of_a_killed_large_upload_are_given_up(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", trace_bytes=40 << 20)
    target = UploadTarget("s3://bucket/large/r")
    store = fsspec.filesystem("s3", skip_instance_cache=True)
    for key in ("large/r/traces/step4/rank0.json.gz", "large/other/file"):
        store.call_s3("create_multipart_upload", Bucket="bucket", Key=key)
    uploader = NodeUploader(run, target, "host")
    uploader.record.claimed.append("traces/step4/rank0.json.gz")  # by an upload that was killed
    assert uploader.turn(is_last=True)
    left = store.call_s3("list_multipart_uploads", Bucket="bucket")["Uploads"]
    assert [each["Key"] for each in left] == ["large/other/file"]
    assert contents("s3://bucket/large/r") == folder_contents(run)


def test_a_run_is_protected_until_every_node_has_finished(memory: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "r")
    uploader = NodeUploader(run, UploadTarget(f"{memory}/r"), "host")
    assert uploader.turn(is_last=False)
    assert uploader.record.state is UploadState.UPLOADING
    assert list_runs(memory).runs[0].state is RunState.UPLOADING
    assert uploader.turn(is_last=True)
    assert list_runs(memory).runs[0].state is RunState.RUNNING  # written just now


def test_growing_lines_are_uploaded_whole_and_ever_less_often(memory: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "r")
    steps, now = run / "steps" / "rank0.jsonl", [1000.0]
    uploader = NodeUploader(run, UploadTarget(f"{memory}/r"), "host", clock=lambda: now[0])
    target = UploadTarget(f"{memory}/r")
    uploader.turn(is_last=False)
    first = steps.read_bytes()
    with steps.open("ab") as file:
        file.write(_step(1, 5) + b'{"index": 2, "st')
    now[0] += 14.0
    uploader.turn(is_last=False)
    assert target.read("steps/rank0.jsonl") == first
    now[0] += 1.1
    uploader.turn(is_last=False)
    assert target.read("steps/rank0.jsonl") == first + _step(1, 5)
    steps.write_bytes(_step(0, 1) * (30 * GROWING_BYTES_PER_SECOND // len(_step(0, 1))))
    now[0] += 29.0
    uploader.turn(is_last=False)
    assert len(target.read("steps/rank0.jsonl")) < 1000
    now[0] += 1.0
    uploader.turn(is_last=False)
    assert len(target.read("steps/rank0.jsonl")) > 29 * GROWING_BYTES_PER_SECOND


def test_a_torn_last_line_does_not_keep_an_upload_from_its_end(memory: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "r")
    with (run / "steps" / "rank0.jsonl").open("ab") as file:
        file.write(b'{"index": 1')
    uploader = NodeUploader(run, UploadTarget(f"{memory}/r"), "host")
    assert uploader.turn(is_last=True)
    assert UploadTarget(f"{memory}/r").read("steps/rank0.jsonl").endswith(b"}\n")
    assert NodeUploader(run, UploadTarget(f"{memory}/r"), "host").turn(is_last=True)


def test_an_attempt_in_an_empty_folder_follows_what_is_there(memory: str, tmp_path: Path) -> None:
    """A pod that is started again on another node has an empty folder, whose attempts and steps begin anew."""
    first = write_run(tmp_path / "first" / "r", more={"traces/step4/rank0.json.gz": b"first"})
    NodeUploader(first, UploadTarget(f"{memory}/r"), "a").turn(is_last=True)
    second = write_run(tmp_path / "second" / "r", days=0.0, more={"traces/step4/rank0.json.gz": b"second"})
    (second / "steps" / "rank0.jsonl").write_bytes(_step(0, 100) + _step(1, 200, attempt=2))
    for _ in range(2):  # also by a process that is started again
        uploader = NodeUploader(second, UploadTarget(f"{memory}/r"), "b")
        assert uploader.turn(is_last=True)
    target = UploadTarget(f"{memory}/r")
    lines = [json.loads(line) for line in target.read("steps/rank0.jsonl").splitlines()]
    assert [(line["start_ns"], line.get("attempt", 1)) for line in lines] == [(1, 1), (100, 2), (200, 3)]
    assert len(json.loads(target.read("run.json"))["attempts"]) == 2
    assert target.read("traces/step4/rank0.json.gz") == b"first"
    assert target.read("traces/step4-attempt2/rank0.json.gz") == b"second"
    with (second / "steps" / "rank0.jsonl").open("ab") as file:
        file.write(_step(2, 300, attempt=2))
    again = NodeUploader(second, UploadTarget(f"{memory}/r"), "b")
    assert again.turn(is_last=True)
    lines = [json.loads(line) for line in target.read("steps/rank0.jsonl").splitlines()]
    assert [line["start_ns"] for line in lines] == [1, 100, 200, 300]


def test_a_lost_record_doubles_nothing(memory: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "r")
    NodeUploader(run, UploadTarget(f"{memory}/r"), "a").turn(is_last=True)
    before = contents(f"{memory}/r")
    for path in (run / "uploads").iterdir():
        path.unlink()
    assert NodeUploader(run, UploadTarget(f"{memory}/r"), "a").turn(is_last=True)
    assert contents(f"{memory}/r") == before


def test_what_the_store_lost_is_uploaded_again(memory: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "r")
    NodeUploader(run, UploadTarget(f"{memory}/r"), "a").turn(is_last=True)
    target = UploadTarget(f"{memory}/r")
    target.remove("traces/step4/rank0.json.gz")
    assert NodeUploader(run, target, "a").turn(is_last=True)
    assert contents(f"{memory}/r") == folder_contents(run)


def test_a_node_of_an_attempt_that_has_ended_belongs_to_it(memory: str, tmp_path: Path) -> None:
    """Its files may be newer than the end of the attempt, as those that were copied are."""
    first = write_run(tmp_path / "a" / "r", days=40.0)
    NodeUploader(first, UploadTarget(f"{memory}/r"), "a").turn(is_last=True)
    other = tmp_path / "b" / "r"
    (other / "ranks").mkdir(parents=True)
    start_ns = time.time_ns() - int(40 * DAY * 1e9) - 10**9
    (other / "ranks" / "rank1.json").write_text(json.dumps({"start_ns": start_ns}))
    (other / "traces" / "step4").mkdir(parents=True)
    (other / "traces" / "step4" / "rank1.json.gz").write_bytes(b"x")
    uploader = NodeUploader(other, UploadTarget(f"{memory}/r"), "b")
    assert uploader.turn(is_last=True)
    assert uploader.record.attempts_before == 0
    later = tmp_path / "c" / "r"  # without its earlier files, on another node
    (later / "ranks").mkdir(parents=True)
    (later / "ranks" / "rank1.json").write_text(json.dumps({"start_ns": time.time_ns()}))
    uploader = NodeUploader(later, UploadTarget(f"{memory}/r"), "c")
    assert uploader.turn(is_last=True)
    assert uploader.record.attempts_before == 1


def test_traces_wait_for_their_views_where_they_may_be_removed(memory: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", more={"traces/step9/rank0.json.gz": b"x", "views/step9/rank0.view": b"v"})
    uploader = NodeUploader(run, UploadTarget(f"{memory}/r"), "a", reduces=True)
    assert uploader.turn(is_last=False)
    assert sorted(path for path in contents(f"{memory}/r") if "trace" in path) == ["traces/step9/rank0.json.gz"]
    assert uploader.turn(is_last=True)
    assert contents(f"{memory}/r") == folder_contents(run)


def test_states_of_a_long_step_go_when_it_ends(memory: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", more={"flight/live/rank0.state": b"{}"})
    uploader = NodeUploader(run, UploadTarget(f"{memory}/r"), "a")
    uploader.turn(is_last=False)
    assert "flight/live/rank0.state" in contents(f"{memory}/r")
    (run / "flight" / "live" / "rank0.state").unlink()
    uploader.turn(is_last=False)
    assert "flight/live/rank0.state" not in contents(f"{memory}/r")


def test_large_files_are_removed_once_they_have_arrived_and_records_stay(memory: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "r")
    report = upload_runs(str(tmp_path), memory, keep=False)
    assert (report.runs[0].freed_bytes, report.runs[0].is_whole) == (1000, True)
    assert sorted(folder_contents(run)) == ["run.json", "steps/rank0.jsonl"]
    assert len(contents(f"{memory}/r")) == 3
    (run / "traces" / "step9").mkdir(parents=True)
    (run / "traces" / "step9" / "rank0.json.gz").write_bytes(b"more")  # of an attempt that follows
    assert upload_runs(str(tmp_path), memory, keep=False).runs[0].num_files == 4
    assert len(contents(f"{memory}/r")) == 4


class _Broken(UploadTarget):
    """A store that stores something else."""

    def find(self, path: str):  # type: ignore[no-untyped-def]
        found = super().find(path)
        return None if found is None else found._replace(bytes=found.bytes + 1)


def test_what_has_not_arrived_is_not_taken_as_arrived(memory: str, tmp_path: Path) -> None:
    with pytest.raises(NotArrivedError, match="uploaded 3 bytes, the store has 4 bytes"):
        _Broken(f"{memory}/r").put("run.json", content_of(b"abc"))
    uploader = NodeUploader(write_run(tmp_path / "r"), _Broken(f"{memory}/r"), "a")
    with pytest.raises(NotArrivedError):
        uploader.turn(is_last=True)
    assert uploader.record.files == {}


def test_another_file_system_gets_whole_files_by_renames(tmp_path: Path) -> None:
    run, there = write_run(tmp_path / "here" / "r"), tmp_path / "there"
    upload_runs(str(run), f"file://{there}")
    assert folder_contents(there / "r") == folder_contents(run)
    assert not list(there.rglob("*.part"))


def test_a_server_that_is_not_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "r")
    for name, value in {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "k"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setattr(transfer, "MOST_TRIES", 1)
    fsspec.filesystem("s3").clear_instance_cache()
    with pytest.raises(UnreachableError, match="s3://bucket/gone/r: cannot be opened"):
        upload_runs(str(run), "s3://bucket/gone")
    fsspec.filesystem("s3").clear_instance_cache()
    assert folder_contents(run)


def test_what_cannot_be_uploaded(memory: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no run"):
        upload_runs(str(tmp_path / "empty"), memory)
    with pytest.raises(UsageError, match="is not a URL"):
        upload_runs(str(write_run(tmp_path / "r")), "/tmp/there")


def test_one_process_at_a_time_uploads_a_folder(memory: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "r")
    with transfer.own_folder(run), pytest.raises(DataError, match="is being uploaded by another process"):
        upload_runs(str(run), memory)
    assert os.path.exists(run / ".upload-lock")
