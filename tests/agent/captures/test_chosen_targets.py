"""Whom does an order mean, and what is too much?"""

from __future__ import annotations

from http import HTTPStatus

import pytest

from stepscope.agent.captures.capture import CaptureLimits, RefusedError, chosen_targets, within_limits
from stepscope.core.protocol.captures import CaptureOrder, CaptureReport, CaptureState, RankCapture
from tests.agent.captures.fake_backend import target

_NOW = 10_000_000_000_000_000


def _order(**fields: object) -> CaptureOrder:
    return CaptureOrder(**({"id": "c", "steps": 3, "run": "r"} | fields))  # type: ignore[arg-type]


def _keys(*targets: object, order: CaptureOrder, pids: tuple[int, ...] = ()) -> list[str]:
    return [one.key for one in chosen_targets(targets, order, job_pids=pids)]  # type: ignore[arg-type]


def test_all_ranks_of_a_run_or_some() -> None:
    targets = target(1), target(0), target(0, "other", run="q", run_directory="/runs/q")
    assert _keys(*targets, order=_order()) == ["k0", "k1"]
    assert _keys(*targets, order=_order(run="/runs/r")) == ["k0", "k1"]
    assert _keys(*targets, order=_order(ranks=(1, 7))) == ["k1"]


def test_a_job_by_its_processes_its_number_or_the_name_that_its_run_got() -> None:
    targets = (
        target(0, "by_pid", pid=7),
        target(1, "by_number", job="120"),
        target(2, "by_name", run="slurm-120", run_directory="/runs/slurm-120"),
        target(3, "another", run="slurm-1201", job="7", pid=8),
    )
    assert _keys(*targets, order=_order(run=None, job="120"), pids=(7,)) == ["by_pid", "by_number", "by_name"]


def test_a_process_that_two_back_ends_know_is_captured_once() -> None:
    twice = target(0, "profile", pid=7), target(0, "kineto", pid=7, run=None, run_directory=None, job="r")
    assert _keys(*twice, order=_order(run=None, job="r"), pids=(7,)) == ["profile"]


def test_runs_of_one_name_are_told_apart_by_their_directory() -> None:
    targets = target(0, "mine"), target(0, "yours", uid=1000, run_directory="/home/you/r")
    with pytest.raises(RefusedError, match=r"not one run; name its directory: /home/you/r, /runs/r") as refused:
        chosen_targets(targets, _order())
    assert refused.value.status is HTTPStatus.CONFLICT
    assert _keys(*targets, order=_order(run="/home/you/r")) == ["yours"]


@pytest.mark.parametrize(
    ("order", "line"),
    [
        (_order(run="q"), "no process of run q is known here; connected are: r"),
        (_order(run=None, job="9"), "no process of job 9 is known here; connected are: r"),
        (_order(ranks=(5,)), "none of these ranks of run r is here; here are: 0"),
    ],
)
def test_nobody_is_meant(order: CaptureOrder, line: str) -> None:
    with pytest.raises(RefusedError) as refused:
        chosen_targets([target(0)], order)
    assert (str(refused.value), refused.value.status) == (line, HTTPStatus.NOT_FOUND)


def test_the_limits_are_filled_in() -> None:
    order = within_limits(_order(), [target(0)], [], CaptureLimits(max_bytes=5, max_seconds=2.0), _NOW)
    assert (order.max_bytes, order.deadline_unix_ns) == (5, _NOW + 2_000_000_000)
    order = within_limits(_order(max_bytes=3, deadline_unix_ns=_NOW + 1), [target(0)], [], CaptureLimits(), _NOW)
    assert (order.max_bytes, order.deadline_unix_ns) == (3, _NOW + 1)


@pytest.mark.parametrize(
    "fields", [{"steps": 101}, {"max_bytes": (1 << 30) + 1}, {"start_unix_ns": _NOW + 4 * 3600 * 10**9}]
)
def test_more_than_anybody_may(fields: dict[str, int]) -> None:
    with pytest.raises(RefusedError) as refused:
        within_limits(_order(**fields), [target(0)], [], CaptureLimits(), _NOW)
    assert refused.value.status is HTTPStatus.UNPROCESSABLE_ENTITY


def test_too_often_is_by_run_and_hour() -> None:
    def made(ago_seconds: int, directory: str = "/runs/r", state: CaptureState = CaptureState.DONE) -> CaptureReport:
        rank = RankCapture("k0", "fake", run_directory=directory, state=state)
        return CaptureReport("h", _NOW - ago_seconds * 10**9, _order(), (rank,))

    limits = CaptureLimits(max_per_hour=2, max_open=3)
    others = [made(10), made(3599, "/runs/q"), made(3601)]
    within_limits(_order(), [target(0)], others, limits, _NOW)
    with pytest.raises(RefusedError, match="captured 2 times within an hour; no more than 2"):
        within_limits(_order(), [target(0)], [*others, made(20)], limits, _NOW)
    of_tomorrow = [made(-86_400), made(-86_400)]  # the clock was set back since
    within_limits(_order(), [target(0)], of_tomorrow, limits, _NOW)
    open_ones = [made(10, f"/runs/{n}", CaptureState.STARTED) for n in range(3)]
    with pytest.raises(RefusedError, match="3 captures are open already") as refused:
        within_limits(_order(), [target(0)], open_ones, limits, _NOW)
    assert refused.value.status is HTTPStatus.TOO_MANY_REQUESTS
