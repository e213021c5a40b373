"""Shared answers: one for all viewers, made in the background, kept while a newer one cannot be had."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from stepscope.core.errors import UnreachableError
from stepscope.dashboard.queries import FleetQueries, SharedSnapshots


@pytest.fixture(autouse=True)
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End the thread of all snapshots that a test makes."""
    made: list[SharedSnapshots] = []
    begin = SharedSnapshots.__init__

    def begin_and_note(self: SharedSnapshots, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        made.append(self)

    monkeypatch.setattr(SharedSnapshots, "__init__", begin_and_note)
    yield
    for snapshots in made:
        snapshots.close()


def wait_for(condition: object, seconds: float = 10.0) -> None:
    """Until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_fifty_viewers_share_one_answer() -> None:
    snapshots, made = SharedSnapshots(seconds=60.0), []

    def make() -> int:
        made.append(threading.current_thread().name)
        time.sleep(0.05)
        return 7

    answers: list[object] = []
    viewers = [threading.Thread(target=lambda: answers.append(snapshots.get("a", make, wait=10.0))) for _ in range(50)]
    for viewer in viewers:
        viewer.start()
    for viewer in viewers:
        viewer.join()

    assert made == ["stepscope-snapshots"]
    assert [getattr(answer, "value", None) for answer in answers] == [7] * 50


def test_a_viewer_does_not_wait_for_a_slow_first_answer() -> None:
    release = threading.Event()
    snapshots = SharedSnapshots(seconds=60.0)
    began = time.monotonic()

    assert snapshots.get("a", release.wait, wait=0.05) is None
    assert time.monotonic() - began < 5.0
    release.set()
    wait_for(lambda: snapshots.get("a", release.wait, wait=0.0) is not None)


def test_an_answer_is_made_again_and_a_failure_keeps_the_last_one() -> None:
    snapshots, calls = SharedSnapshots(seconds=0.02), []

    def make() -> int:
        calls.append(1)
        if len(calls) > 1:
            raise UnreachableError("does not answer", where="http://prometheus:9090", what_next="start it")
        return 1

    first = snapshots.get("a", make, wait=10.0)
    assert first is not None
    assert (first.value, first.problem) == (1, None)
    wait_for(lambda: (snapshots.get("a", make, wait=10.0) or first).problem is not None)
    later = snapshots.get("a", make, wait=10.0)
    assert later is not None
    assert later.value == 1
    assert later.problem == "http://prometheus:9090: does not answer; start it"
    assert later.number > first.number


def test_an_unexpected_failure_is_logged_under_the_id_that_the_page_names(caplog: object) -> None:
    def fail() -> int:
        raise RuntimeError("boom")

    answer = SharedSnapshots().get("a", fail, wait=10.0)

    assert answer is not None
    assert answer.problem is not None
    error_id = answer.problem.rpartition(" ")[2]
    assert error_id in caplog.text  # type: ignore[attr-defined]
    assert "boom" in caplog.text  # type: ignore[attr-defined]


def test_the_thread_ends_when_it_is_closed() -> None:
    snapshots, calls = SharedSnapshots(seconds=0.01), []

    def make() -> int:
        calls.append(threading.current_thread())
        return 1

    assert snapshots.get("a", make, wait=10.0) is not None
    snapshots.close()

    assert not calls[0].is_alive()
    made = len(calls)
    assert snapshots.get("b", make, wait=0.05) is None
    assert len(calls) == made


def test_few_answers_are_kept() -> None:
    snapshots, calls = SharedSnapshots(seconds=60.0), []

    def make() -> int:
        calls.append(1)
        return 1

    for key in (*range(30), 0):
        snapshots.get(key, make, wait=10.0)

    assert len(calls) == 31


def test_a_password_in_the_address_of_a_history_is_on_no_page() -> None:
    def never() -> None:
        raise AssertionError

    fleet = FleetQueries(never, location="https://me:secret@prom:9090/x", interval=15.0)  # type: ignore[arg-type]
    assert fleet.location == "https://prom:9090/x"
    assert fleet.stale_after_ns == 60 * 10**9
