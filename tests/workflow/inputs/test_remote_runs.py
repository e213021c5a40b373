"""Runs below URLs, as real S3 servers and a store in memory have them: read as run directories are."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from stepscope.core.documents.upload import NodeUpload
from stepscope.core.errors import DataError
from stepscope.core.vocabulary import Notice
from stepscope.store.documents import encode_document
from stepscope.workflow.analyze import analyze
from stepscope.workflow.compare import read_run_record
from stepscope.workflow.inputs import remote_runs
from stepscope.workflow.inputs.remote_runs import local_records, open_remote_run
from stepscope.workflow.inputs.trace_files import find_trace_files
from stepscope.workflow.stored_runs.sizes import PRUNED_MARK
from stepscope.workflow.transfer.upload_runs import upload_runs
from tests.workflow.clusters import stepscope
from tests.workflow.stored_runs.kept_runs import write_run
from tests.workflow.transfer.object_store import folder_contents, s3_bucket
from tests.workflow.written_runs import write_run as write_steps
from tests.workflow.written_traces import write_trace

pytest.importorskip("s3fs", reason="s3fs is not installed")
pytest.importorskip("moto", reason="moto is not installed")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("STEPSCOPE_VIEWS", "on")


@pytest.fixture
def memory() -> Iterator[str]:
    store = fsspec.filesystem("memory")
    store.store.clear()
    yield "memory://bucket/runs"
    store.store.clear()


def _job(folder: Path) -> tuple[Path, list[Path]]:
    """A run of two ranks in one folder, and the same in the folders of two nodes."""
    whole = write_steps(folder / "whole" / "gpt", num_steps=40, ranks=(0, 1), age_seconds=4000.0)
    manifest = json.loads((whole / "run.json").read_bytes())
    manifest["attempts"][0]["start_ns"] = 1  # before the traces
    (whole / "run.json").write_text(json.dumps(manifest))
    for rank in (0, 1):
        for capture in ("step3", "step20"):
            write_trace(whole / "traces" / capture / f"rank{rank}.json.gz", rank, world_size=2)
    nodes = [folder / "a" / "gpt", folder / "b" / "gpt"]
    for path in filter(Path.is_file, whole.rglob("*")):
        node = nodes[1 if path.name.startswith("rank1") else 0]
        (node / path.relative_to(whole)).parent.mkdir(parents=True, exist_ok=True)
        (node / path.relative_to(whole)).write_bytes(path.read_bytes())
    return whole, nodes


def _document(result: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(encode_document(result.analysis))
    return document | {"warnings": [notice["code"] for notice in document["warnings"]]}


def test_two_nodes_without_a_common_folder_are_analysed_as_one_run(tmp_path: Path) -> None:
    whole, nodes = _job(tmp_path)
    expected = analyze([str(whole)], keep=False)
    with s3_bucket(tmp_path) as settings:
        for node in nodes:
            upload_runs(str(node), "s3://bucket/runs")
        found = analyze(["s3://bucket/runs/gpt"])
        assert found.kept_in is None
        assert _document(found) == _document(expected)
        assert found.num_captures == expected.num_captures == 2
        steps = stepscope("steps", "s3://bucket/runs/gpt", "--json", **settings, XDG_CACHE_HOME=str(tmp_path / "c"))
        assert json.loads(steps.stdout) == json.loads(stepscope("steps", str(whole), "--json").stdout)
        several = stepscope("analyze", "s3://bucket/runs", **settings, XDG_CACHE_HOME=str(tmp_path / "c"))
        assert (several.returncode, "holds 1 run: gpt" in several.stderr) == (3, True), several.stderr
    cached = tmp_path / "cache" / "stepscope"
    assert not list((cached / "runs").rglob("traces"))
    assert len(list((cached / "views").glob("*.view"))) == 4  # both captures of both ranks


def test_a_run_without_traces_is_judged_by_its_steps(memory: str, tmp_path: Path) -> None:
    run = write_steps(tmp_path / "gpt", num_steps=40, ranks=(0, 1), age_seconds=4000.0)
    upload_runs(str(run), memory)
    expected = analyze([str(run)], keep=False)
    assert _document(analyze([f"{memory}/gpt"])) == _document(expected)
    assert not (run / "analysis.json").exists()


def test_runs_below_urls_are_compared_by_all_their_steps(memory: str, tmp_path: Path) -> None:
    run = write_steps(tmp_path / "gpt", num_steps=60, ranks=(0, 1), age_seconds=4000.0)
    upload_runs(str(run), memory)
    record, here = read_run_record(f"{memory}/gpt", []), read_run_record(str(run), [])
    assert record.unprofiled_ms == here.unprofiled_ms != []
    assert record.manifest == here.manifest is not None


def test_a_run_on_disk_may_be_given_as_a_url(tmp_path: Path) -> None:
    whole, _ = _job(tmp_path)
    found = find_trace_files([f"file://{whole}"])
    assert (found.run_directory, found.num_captures, found.url) == (whole, 2, None)
    assert local_records(f"file://{whole}") == str(whole)


def test_only_what_changed_is_fetched_again(memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "r", more={"views/step4/rank0.view": b"v", "views/step9/rank0.view": b"only a view"})
    upload_runs(str(run), memory)
    fetched: list[str] = []
    fetch = remote_runs._fetch_batch

    def noted(listed: Any, folder: Path, paths: list[str]) -> None:
        fetched.extend(paths)
        fetch(listed, folder, paths)

    monkeypatch.setattr(remote_runs, "_fetch_batch", noted)
    found = open_remote_run(f"{memory}/r", [])
    assert found is not None
    assert sorted(path for path in fetched if "uploads" not in path) == [
        "run.json",
        "steps/rank0.jsonl",
        "views/step9/rank0.view",
    ]
    assert found.traces == {"step4": ["memory:///bucket/runs/r/traces/step4/rank0.json.gz"]}
    fetched.clear()
    store = fsspec.filesystem("memory")
    time.sleep(0.01)
    store.pipe_file("/bucket/runs/r/steps/rank0.jsonl", b"{}\n")
    store.rm_file("/bucket/runs/r/views/step9/rank0.view")
    open_remote_run(f"{memory}/r", [])
    assert fetched == ["steps/rank0.jsonl"]
    assert "views/step9/rank0.view" not in folder_contents(found.folder)
    assert (found.folder / "steps" / "rank0.jsonl").read_bytes() == b"{}\n"


def test_an_unfinished_upload_and_lost_objects_are_warnings(memory: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "r")
    upload_runs(str(run), memory)
    store = fsspec.filesystem("memory")
    store.rm_file("/bucket/runs/r/traces/step4/rank0.json.gz")
    other = NodeUpload("r", "node2", problem="the store does not answer")
    store.pipe_file("/bucket/runs/r/uploads/node2.json", encode_document(other))
    notices: list[Notice] = []
    open_remote_run(f"{memory}/r", notices)
    assert sorted(notice.code for notice in notices) == ["missing_objects", "upload_unfinished"]
    texts = " ".join(notice.message for notice in notices)
    assert "node2 has not finished its upload (the store does not answer)" in texts
    assert "1 file of " in texts
    assert "traces/step4/rank0.json.gz" in texts


def test_keys_that_leave_the_folder_are_not_fetched(memory: str, tmp_path: Path) -> None:
    store = fsspec.filesystem("memory")
    upload_runs(str(write_run(tmp_path / "r")), memory)
    store.store["/bucket/runs/r/../../evil.json"] = store.store["/bucket/runs/r/run.json"]
    store.store["/bucket/runs/r/steps/../../../evil.json"] = store.store["/bucket/runs/r/run.json"]
    found = open_remote_run(f"{memory}/r", [])
    assert found is not None
    assert not list((tmp_path / "cache").rglob("evil.json"))


def test_a_run_that_is_being_deleted_is_refused(memory: str, tmp_path: Path) -> None:
    upload_runs(str(write_run(tmp_path / "r")), memory)
    fsspec.filesystem("memory").pipe_file(f"/bucket/runs/r/{PRUNED_MARK}", b"x")
    with pytest.raises(DataError, match="is being deleted"):
        find_trace_files([f"{memory}/r"])


def test_too_much_is_left_in_the_store(memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_runs, "CACHE_BYTES", 10_000)
    upload_runs(str(write_run(tmp_path / "r", more={"memory/rank0.pickle": bytes(20_000)})), memory)
    notices: list[Notice] = []
    found = open_remote_run(f"{memory}/r", notices)
    assert found is not None
    assert [notice.code for notice in notices] == ["not_fetched"]
    assert "memory/rank0.pickle" not in folder_contents(found.folder)


@pytest.mark.parametrize("url", ["memory://bucket/nothing", "memory://bucket/runs/r/steps"])
def test_what_is_not_a_run(memory: str, tmp_path: Path, url: str) -> None:
    upload_runs(str(write_run(tmp_path / "r")), memory)
    assert open_remote_run(url, []) is None
    with pytest.raises(DataError, match="is not a run"):
        local_records(url)
