"""Each run has its own directory, also when several start at the same moment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stepscope.core.errors import DataError, UsageError
from stepscope.reference_workloads.placement import claimed_run_directory, share_run_directory


def _take(wanted: Path, *, may_be_numbered: bool) -> str | None:
    try:
        with claimed_run_directory(wanted, "steps", may_be_numbered=may_be_numbered) as folder:
            return folder.name
    except UsageError:
        return None


def test_of_runs_with_one_made_up_name_each_takes_the_next_free_one(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(lambda _: _take(tmp_path / "r", may_be_numbered=True), range(8)))
    assert sorted(map(str, names)) == ["r", *(f"r-{number}" for number in range(2, 9))]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(map(str, names)), "nothing else is left"


def test_of_runs_with_one_given_name_only_one_begins(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(lambda _: _take(tmp_path / "r", may_be_numbered=False), range(8)))
    assert sorted(filter(None, names)) == ["r"]
    with (
        pytest.raises(UsageError, match="not empty; choose another name"),
        claimed_run_directory(tmp_path / "r", "steps", may_be_numbered=False),
    ):
        pass


def test_an_empty_folder_may_be_taken_and_one_that_is_no_folder_may_not(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert _take(tmp_path / "empty", may_be_numbered=False) == "empty"
    assert [path.name for path in (tmp_path / "empty").iterdir()] == ["steps"]
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(DataError, match="cannot be written"):
        _take(tmp_path / "file", may_be_numbered=True)


def test_a_link_may_lead_to_the_folder(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "r").symlink_to(tmp_path / "scratch")
    assert _take(tmp_path / "r", may_be_numbered=False) == "r"
    assert [path.name for path in (tmp_path / "scratch").iterdir()] == ["steps"]
    assert _take(tmp_path / "r", may_be_numbered=True) == "r-2"


def test_a_folder_that_was_there_before_a_failure_stays(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    with pytest.raises(ValueError, match="training"):
        _fail(tmp_path / "r", "")
    assert list((tmp_path / "r").iterdir()) == []


def test_a_failure_that_left_nothing_leaves_the_name_free(tmp_path: Path) -> None:
    for left in ("", "steps/rank0.jsonl"):
        with pytest.raises(ValueError, match="training"):
            _fail(tmp_path / "r", left)
        assert (tmp_path / "r").exists() == bool(left)


def _fail(wanted: Path, left: str) -> None:
    with claimed_run_directory(wanted, "steps", may_be_numbered=False):
        if left:
            (wanted / left).write_text("a step")
        raise ValueError("training")


def test_ranks_of_one_job_share_theirs(tmp_path: Path) -> None:
    for _ in range(2):
        share_run_directory(tmp_path / "r")
    assert list((tmp_path / "r").iterdir()) == []
