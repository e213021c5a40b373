"""Selection of the processes that a capture request targets, and its limits."""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus

import pytest

from stepscope.agent.captures import capture
from stepscope.agent.captures.capture import CaptureRefusedError, capture_within_limits, select_capture_targets
from stepscope.agent.config.settings import CaptureLimits
from stepscope.core.protocol.captures import (
    CaptureOrder,
    CaptureProgress,
    CaptureReport,
    CaptureRequest,
    CaptureSelector,
    CaptureState,
    CaptureTarget,
    RankCapture,
)
from tests.agent.captures.fake_backend import target

_NOW = 10_000_000_000_000_000


def _request(**fields: object) -> CaptureRequest:
    return CaptureRequest(**({"id": "c", "steps": 3} | fields))  # type: ignore[arg-type]


_RUN = CaptureSelector("r")


def _keys(
    *targets: CaptureTarget,
    run: str | None = "r",
    job: str | None = None,
    ranks: tuple[int, ...] | None = None,
    pids: tuple[int, ...] = (),
) -> list[str]:
    return [one.key for one in select_capture_targets(targets, CaptureSelector(run, job), ranks, job_pids=pids)]


def test_all_ranks_of_a_run_or_some() -> None:
    targets = target(1), target(0), target(0, "other", run="q", run_directory="/runs/q")
    assert _keys(*targets) == ["k0", "k1"]
    assert _keys(*targets, run="/runs/r") == ["k0", "k1"]
    assert _keys(*targets, ranks=(1, 7)) == ["k1"]


def test_a_job_by_its_processes_its_number_or_the_name_that_its_run_got() -> None:
    targets = (
        target(0, "by_pid", pid=7),
        target(1, "by_number", job="120"),
        target(2, "by_name", run="slurm-120", run_directory="/runs/slurm-120"),
        target(3, "another", run="slurm-1201", job="7", pid=8),
    )
    assert _keys(*targets, run=None, job="120", pids=(7,)) == ["by_pid", "by_number", "by_name"]


def test_a_process_that_two_back_ends_know_is_captured_once() -> None:
    twice = target(0, "profile", pid=7), target(0, "kineto", pid=7, run=None, run_directory=None, job="r")
    assert _keys(*twice, run=None, job="r", pids=(7,)) == ["profile"]


def test_runs_of_one_name_are_told_apart_by_their_directory() -> None:
    targets = target(0, "mine"), target(0, "yours", uid=1000, run_directory="/home/you/r")
    with pytest.raises(CaptureRefusedError, match=r"not one run; name its directory: /home/you/r, /runs/r") as refused:
        select_capture_targets(targets, _RUN)
    assert refused.value.status is HTTPStatus.CONFLICT
    assert _keys(*targets, run="/home/you/r") == ["yours"]


@pytest.mark.parametrize(
    ("selector", "ranks", "line"),
    [
        (CaptureSelector("q"), None, "no process of run q is known here; connected are: r"),
        (CaptureSelector(job="9"), None, "no process of job 9 is known here; connected are: r"),
        (_RUN, (5,), "none of these ranks of run r is here; here are: 0"),
    ],
)
def test_nobody_is_meant(selector: CaptureSelector, ranks: tuple[int, ...] | None, line: str) -> None:
    with pytest.raises(CaptureRefusedError) as refused:
        select_capture_targets([target(0)], selector, ranks)
    assert (str(refused.value), refused.value.status) == (line, HTTPStatus.NOT_FOUND)


def test_the_limits_are_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "_MAX_SECONDS", 2.0)
    request = capture_within_limits(_request(), [target(0)], [], CaptureLimits(max_bytes=5), _NOW)
    assert (request.max_bytes, request.deadline_unix_ns) == (5, _NOW + 2_000_000_000)
    request = capture_within_limits(
        _request(max_bytes=3, deadline_unix_ns=_NOW + 1), [target(0)], [], CaptureLimits(), _NOW
    )
    assert (request.max_bytes, request.deadline_unix_ns) == (3, _NOW + 1)


@pytest.mark.parametrize(
    "fields", [{"steps": 101}, {"max_bytes": (1 << 30) + 1}, {"start_unix_ns": _NOW + 4 * 3600 * 10**9}]
)
def test_more_than_anybody_may(fields: dict[str, int]) -> None:
    with pytest.raises(CaptureRefusedError) as refused:
        capture_within_limits(_request(**fields), [target(0)], [], CaptureLimits(), _NOW)
    assert refused.value.status is HTTPStatus.UNPROCESSABLE_ENTITY


def test_too_often_is_by_run_and_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(ago_seconds: int, directory: str = "/runs/r", state: CaptureState = CaptureState.DONE) -> CaptureReport:
        rank = RankCapture(target(0, run_directory=directory), CaptureProgress(state))
        order = CaptureOrder(_request(), _RUN)
        return CaptureReport("h", _NOW - ago_seconds * 10**9, order, (rank,))

    monkeypatch.setattr(capture, "_MAX_OPEN", 3)
    limits = CaptureLimits(max_per_hour=2)
    others = [made(10), made(3599, "/runs/q"), made(3601)]
    capture_within_limits(_request(), [target(0)], others, limits, _NOW)
    with pytest.raises(CaptureRefusedError, match="captured 2 times within an hour; no more than 2"):
        capture_within_limits(_request(), [target(0)], [*others, made(20)], limits, _NOW)
    of_tomorrow = [made(-86_400), made(-86_400)]  # the clock was set back since
    capture_within_limits(_request(), [target(0)], of_tomorrow, limits, _NOW)
    open_ones = [made(10, f"/runs/{n}", CaptureState.STARTED) for n in range(3)]
    with pytest.raises(CaptureRefusedError, match="3 captures are open already") as refused:
        capture_within_limits(_request(), [target(0)], open_ones, limits, _NOW)
    assert refused.value.status is HTTPStatus.TOO_MANY_REQUESTS


def test_another_user_who_uses_the_same_names_is_not_meant() -> None:
    ours, theirs = target(0, "ours", pid=7, known_since=5.0), target(0, "theirs", pid=8, uid=666, known_since=6.0)
    assert _keys(theirs, ours, run="/runs/r") == ["ours"]
    in_job = [replace(one, run="slurm-7", job="7") for one in (ours, theirs)]
    assert _keys(*in_job, run=None, job="7") == ["ours"]
    assert _keys(*in_job, run=None, job="7", pids=(8,)) == ["theirs"]  # that process is in the job, as the kernel says
    (chosen,) = select_capture_targets([ours, theirs], CaptureSelector("r", uid=666))
    assert chosen.key == "theirs"
