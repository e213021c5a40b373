"""The folder of a suite belongs to one suite at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stepscope.core.errors import DataError, UsageError
from stepscope.reference_workloads.suite.results import LOCK_FILE, SuiteFolder


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="no suite's folder"):
        SuiteFolder(tmp_path)


def test_nothing_is_made_before_the_folder_is_held(tmp_path: Path) -> None:
    folder = SuiteFolder(tmp_path / "a" / "suite")
    assert folder.load("one-healthy", "1") is None
    assert not list(tmp_path.iterdir())
    with folder.held():
        assert folder.runs.is_dir()
        assert folder.results.is_dir()


def test_a_second_suite_is_kept_out_until_the_first_ends(tmp_path: Path) -> None:
    folder, second = SuiteFolder(tmp_path / "suite"), SuiteFolder(tmp_path / "suite")
    with folder.held():
        (lock,) = (file for file in Path("/proc/self/fd").iterdir() if os.path.realpath(file).endswith(LOCK_FILE))
        inherited = os.dup(int(lock.name))  # as a rank's loader has it, which outlives its rank by some seconds
        with pytest.raises(UsageError, match=r"suite: another suite runs in it; wait for its end"), second.held():
            pass
    with second.held():
        pass
    os.close(inherited)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be made"), SuiteFolder(tmp_path / "file" / "suite").held():
        pass
