"""Deadline: the end of a run is delayed no longer than allowed, and everything is reported."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator

import pytest

from stepscope.training.run import run_files
from stepscope.training.run.run_files import run_within


@pytest.fixture
def disk() -> Iterator[threading.Event]:
    """A disk that answers once this is set."""
    answers = threading.Event()
    yield answers
    answers.set()
    for thread in run_files._late:
        thread.join(10)


def _wait_for(disk: threading.Event) -> None:
    disk.wait(60)


def test_work_is_done_before_it_returns_and_its_error_is_told() -> None:
    done: list[int] = []
    run_within(10, lambda: done.append(1), "a file")
    assert done == [1]
    with pytest.raises(ZeroDivisionError):
        run_within(10, lambda: done.append(1 // 0), "a file")


def test_a_disk_that_does_not_answer_is_waited_for_once(disk: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_files, "_AGAIN_SECONDS", 0.01)
    with pytest.raises(TimeoutError, match="not written: the first"):
        run_within(0.05, functools.partial(_wait_for, disk), "the first")
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match="not written: the second"):
        run_within(30, functools.partial(_wait_for, disk), "the second")
    assert time.monotonic() - begun < 5
    disk.set()
    for thread in run_files._late:
        thread.join(10)
    run_within(30, lambda: time.sleep(0.1), "what comes when it answers again")
