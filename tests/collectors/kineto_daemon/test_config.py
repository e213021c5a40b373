"""The text that makes libkineto trace exactly N steps, and nothing else."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collectors.kineto_daemon.config import StepsConfig


def test_a_process_that_does_not_step_yet_refuses_the_request_instead_of_tracing_its_imports() -> None:
    lines = StepsConfig(PurePosixPath("/tmp/x/a.json"), 3, start_multiple=8).text().splitlines()
    assert "ACTIVITIES_DURATION_MSECS=0" in lines  # without it, 500 ms of whatever the process does
    assert lines[0] == "ACTIVITIES_LOG_FILE=/tmp/x/a.json"
    assert {"PROFILE_START_ITERATION=0", "PROFILE_START_ITERATION_ROUNDUP=8", "ACTIVITIES_ITERATIONS=3"} <= set(lines)


def test_the_trace_appears_with_the_process_id_in_its_name() -> None:
    config = StepsConfig(PurePosixPath("/tmp/x/attempt1.json"), 3)
    assert config.written_path(4711) == PurePosixPath("/tmp/x/attempt1_4711.json")


@pytest.mark.parametrize(
    "path",
    [
        "relative.json",
        "/tmp/../etc/a.json",
        "/tmp/a.json\nPROFILE_WITH_STACK=true",
        "/tmp/a=b/c.json",
        "/tmp/a#b/c.json",
        "/tmp/a.json/b.json",  # the id would go into the folder's name
        "/tmp/a b/c.json",
        "/tmp/a",
    ],
)
def test_a_path_that_libkineto_reads_otherwise_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="cannot be given the path"):
        StepsConfig(PurePosixPath(path), 3)


@given(st.text(max_size=40))
def test_no_path_adds_a_line_or_a_setting(text: str) -> None:
    try:
        config = StepsConfig(PurePosixPath("/tmp/" + text + "/a.json"), 1)
    except ValueError:
        return
    lines = config.text().splitlines()
    assert len(lines) == 8
    assert all(line.count("=") == 1 and "#" not in line and line.strip() == line for line in lines)


@pytest.mark.parametrize(("steps", "multiple"), [(0, 1), (1, 0), (-1, 1)])
def test_numbers_are_positive(steps: int, multiple: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        StepsConfig(PurePosixPath("/tmp/a.json"), steps, start_multiple=multiple)
