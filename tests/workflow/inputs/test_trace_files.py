"""Trace files of a path, and the message for a path without any."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from stepscope.core.errors import DataError
from stepscope.workflow.inputs.trace_files import find_trace_files, open_ranks
from tests.workflow.written_traces import write_trace


def names(paths: list[str]) -> list[str]:
    return [path.rsplit("/", 1)[-1] for path in paths]


@pytest.fixture
def store() -> Iterator[str]:
    """A folder in an object store that holds two traces and something else."""
    memory = fsspec.filesystem("memory")
    for name in ("rank0.json", "rank1.json.gz", "truth.json", "notes.txt"):
        memory.pipe_file(f"/bucket/run/{name}", b"{}")
    yield "memory://bucket/run"
    memory.rm("/bucket", recursive=True)


def test_a_file_is_itself_whatever_its_name(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "odd.name")
    assert find_trace_files([str(path)]).paths == [str(path)]


def test_a_folder_is_the_traces_in_it_and_nothing_else(tmp_path: Path) -> None:
    for name in (
        "rank1.json.gz",
        "rank0.json",
        "analysis.json",
        "timeline.json",
        "truth.json",
        "rank2.json.tmp",
        "a.pkl",
    ):
        (tmp_path / name).touch()
    found = find_trace_files([str(tmp_path)])
    assert names(found.paths) == ["rank0.json", "rank1.json.gz"]
    assert found.run_directory is None
    (notice,) = found.notices
    assert (notice.code, "rank2.json.tmp" in notice.message) == ("unfinished_file", True)


def test_the_same_file_by_two_ways_is_one(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "rank0.json")
    roundabout = os.path.join(tmp_path, ".", "rank0.json")
    (tmp_path / "link.json").symlink_to(path)
    assert len(find_trace_files([str(path), roundabout, str(tmp_path), str(tmp_path / "link.json")]).paths) == 1


def test_a_run_directory_is_its_latest_capture_and_the_older_ones_are_named(tmp_path: Path) -> None:
    for step in (5, 20, 100):
        (tmp_path / "traces" / f"step{step}").mkdir(parents=True)
    for step in (5, 20):
        write_trace(tmp_path / "traces" / f"step{step}" / "rank0.json.gz")
    found = find_trace_files([str(tmp_path)])
    assert [Path(path).parent.name for path in found.paths] == ["step20"]
    assert found.run_directory == tmp_path
    assert [notice.code for notice in found.notices] == ["older_captures"]


def test_a_run_without_captures_says_where_they_would_appear(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(DataError, match=r"no captured traces yet.*traces/step"):
        find_trace_files([str(tmp_path)])


def test_a_folder_of_folders_is_not_one_job(tmp_path: Path) -> None:
    write_trace(tmp_path / "first" / "rank0.json")
    write_trace(tmp_path / "second" / "rank0.json")
    with pytest.raises(DataError, match=r"folders of traces \(first, second\)"):
        find_trace_files([str(tmp_path)])


def test_hidden_folders_are_not_offered(tmp_path: Path) -> None:
    write_trace(tmp_path / ".cache" / "meta.json")
    with pytest.raises(DataError, match="holds no trace"):
        find_trace_files([str(tmp_path)])


@pytest.mark.parametrize("text", ["absent", "", "x" * 5000, "nul\0byte"])
def test_a_path_that_leads_nowhere_is_one_line(text: str) -> None:
    with pytest.raises(DataError) as caught:
        find_trace_files([text])
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3


def test_a_path_that_leads_nowhere_is_a_notice_beside_one_that_does_not(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "rank0.json")
    found = find_trace_files([str(path), str(tmp_path / "absent")])
    assert found.paths == [str(path)]
    assert [notice.code for notice in found.notices] == ["unusable_file"]
    assert "absent" in found.notices[0].message


def test_a_url_is_a_file_or_the_traces_directly_under_it(store: str) -> None:
    assert names(find_trace_files([store]).paths) == ["rank0.json", "rank1.json.gz"]
    assert find_trace_files([f"{store}/rank0.json"]).paths == [f"{store}/rank0.json"]


def test_a_trace_is_read_from_a_url(tmp_path: Path, store: str) -> None:
    written = write_trace(tmp_path / "rank7.json.gz", 7, world_size=8)
    fsspec.filesystem("memory").pipe_file("/bucket/run/rank7.json.gz", written.read_bytes())
    (trace,) = open_ranks(f"{store}/rank7.json.gz")
    assert trace.header.rank == 7
    assert trace.header.file_bytes == written.stat().st_size


def test_a_url_that_leads_nowhere_is_a_data_error(store: str) -> None:
    with pytest.raises(DataError, match="does not exist"):
        open_ranks(f"{store}/absent.json")


def test_a_store_that_nobody_knows_is_a_wrong_url() -> None:
    with pytest.raises(DataError, match="nosuchprotocol:// is not a known kind of store") as caught:
        find_trace_files(["nosuchprotocol://bucket/run"])
    assert caught.value.exit_code == 3
