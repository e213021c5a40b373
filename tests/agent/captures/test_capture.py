"""Capture of one job: each process is asked in time, and given up when no more answers are expected."""

from __future__ import annotations

import pytest

from stepscope.agent.captures.capture import Capture
from stepscope.core.protocol.captures import (
    Alignment,
    CaptureOrder,
    CaptureProgress,
    CaptureRequest,
    CaptureSelector,
    CaptureState,
    CaptureUpdate,
)
from tests.agent.captures.fake_backend import target

_BOTH = {"k0", "k1"}


@pytest.fixture
def capture() -> Capture:
    order = CaptureOrder(CaptureRequest("c", 3, deadline_unix_ns=1_000_000_000_000), CaptureSelector("r"))
    return Capture.new(order, [target(0), target(1)], host="h", now_ns=0, now=0.0)


def _update(key: str, state: CaptureState, **fields: object) -> CaptureUpdate:
    return CaptureUpdate("c", key, CaptureProgress(state, **fields))  # type: ignore[arg-type]


def _state(capture: Capture) -> CaptureState:
    return capture.report.state


def test_the_way_of_one_that_comes_about(capture: Capture) -> None:
    assert _state(capture) is CaptureState.ASKED
    assert capture.to_ask(_BOTH, 0.0) == ["k0", "k1"]
    assert capture.to_ask(_BOTH, 1.0) == []
    accepted = CaptureProgress(CaptureState.ACCEPTED, start_step=8, steps=3, aligned_by=Alignment.STORE)
    told = capture.update(CaptureUpdate("c", "k0", accepted))
    assert told is not None
    assert (told.progress.start_step, told.progress.aligned_by) == (8, Alignment.STORE)
    assert capture.update(CaptureUpdate("c", "k0", accepted)) is None  # nothing new
    assert _state(capture) is CaptureState.ASKED
    capture.update(CaptureUpdate("c", "k1", accepted))
    assert _state(capture) is CaptureState.ACCEPTED
    capture.update(_update("k0", CaptureState.STARTED))
    assert _state(capture) is CaptureState.STARTED
    capture.update(_update("k0", CaptureState.DONE, steps=2, path="/runs/r/a", bytes=5))
    capture.update(_update("k1", CaptureState.DONE, steps=3, path="/runs/r/b", bytes=5))
    assert _state(capture) is CaptureState.DONE
    assert [(one.progress.start_step, one.progress.steps) for one in capture.report.ranks] == [(8, 2), (8, 3)]
    assert capture.update(_update("k0", CaptureState.FAILED)) is None  # the last word was said
    assert capture.update(_update("stranger", CaptureState.DONE)) is None


def test_who_is_silent_or_was_away_is_asked_again_with_the_same_id(capture: Capture) -> None:
    capture.to_ask(_BOTH, 0.0)
    capture.update(_update("k1", CaptureState.ACCEPTED))
    assert capture.to_ask(_BOTH, 11.0) == ["k0"]
    assert capture.to_ask({"k0"}, 12.0) == []
    assert capture.to_ask(_BOTH, 13.0) == ["k1"]


def test_a_process_that_ends_or_stays_away_fails_and_the_others_go_on(capture: Capture) -> None:
    capture.to_ask(_BOTH, 0.0)
    assert capture.away({"k1"}) == {"k0": None}
    assert capture.give_up({"k0": True}, 70.0, 0) == []
    failed = capture.give_up({"k0": False}, 70.0, 0)
    assert [(one.target.rank, one.progress.reason) for one in failed] == [(0, "its process has ended")]
    assert [one.target.rank for one in capture.give_up({}, 80.0, 0)] == [1]  # never seen since
    assert _state(capture) is CaptureState.FAILED


def test_after_its_deadline_there_is_time_to_write_and_no_more(capture: Capture) -> None:
    capture.to_ask(_BOTH, 1300.0)
    capture.update(_update("k0", CaptureState.DONE))
    assert capture.give_up({}, 1300.0, 1_299_000_000_000) == []
    assert [one.progress.reason for one in capture.give_up({}, 1300.0, 1_301_000_000_000)] == [
        "it has not answered in time"
    ]
    assert _state(capture) is CaptureState.PARTIAL


def test_one_that_is_cancelled_is_told_to_all_also_to_those_away(capture: Capture) -> None:
    assert capture.to_ask({"k0"}, 0.0) == ["k0"]
    capture.cancel()
    assert capture.report.is_cancelled
    assert capture.to_ask({"k0"}, 1.0) == ["k0"]
    capture.update(_update("k0", CaptureState.CANCELLED))
    assert capture.to_ask(_BOTH, 2.0) == ["k1"]
    assert capture.to_ask(_BOTH, 13.0) == ["k1"]  # not heard yet
    capture.update(_update("k1", CaptureState.REFUSED))
    assert _state(capture) is CaptureState.CANCELLED


def test_one_that_was_kept_goes_on(capture: Capture) -> None:
    capture.to_ask(_BOTH, 0.0)
    capture.update(_update("k0", CaptureState.STARTED, start_step=4))
    again = Capture(capture.report, 1000.0)
    assert again.report == capture.report
    assert again.give_up({}, 1010.0, 0) == []  # training needs a while to come back
    assert again.to_ask(_BOTH, 1010.0) == ["k0", "k1"]
