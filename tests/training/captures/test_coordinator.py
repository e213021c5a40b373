"""Coordinator: ranks agree where they can, and report how steps were chosen where they cannot."""

from __future__ import annotations

import time
from typing import Any

import pytest

from stepscope.core.protocol.captures import Alignment, CaptureRequest, CaptureState
from stepscope.core.protocol.messages import Answer
from stepscope.training.captures import coordinator as subject
from stepscope.training.captures.coordinator import RankCaptureCoordinator
from stepscope.training.captures.schedule import Schedule, SlowStepWatch, slow_step
from stepscope.training.run.identity import Identity
from stepscope.training.steps.telemetry import RecentStepTime, StepRecord

torch = pytest.importorskip("torch")

_STEP_NS = 10_000_000


class _Rank:
    """A rank's coordinator, and the steps it makes."""

    def __init__(self, rank: int, world_size: int = 2, *, rule: bool = False, takes_scheduled: bool = True) -> None:
        self.answers: list[Answer] = []
        self.step_time = RecentStepTime()
        self.slow_steps = SlowStepWatch(slow_step(steps=2)) if rule else None
        self.coordinator = RankCaptureCoordinator(
            "r",
            Identity(rank, rank, world_size, "h"),
            Schedule(first=10**6),
            takes_scheduled=takes_scheduled,
            step_time=self.step_time,
            slow_steps=self.slow_steps,
            send=self.answers.append,
        )

    def run_to(self, step: int) -> _Rank:
        """Make all steps before `step`, which then runs."""
        for index in range(self.coordinator.plan.step, step):
            self.step_time.add(StepRecord(index, index * _STEP_NS, (index + 1) * _STEP_NS))
            self.coordinator.plan.advance(index + 1)
        return self

    def last(self) -> tuple[str, int | None, Alignment | None]:
        answer = self.answers[-1]
        return answer.progress.state.value, answer.progress.start_step, answer.progress.aligned_by


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The job's; ranks are those of one process here, so that the runs' numbers are put back for each."""
    store = torch.distributed.HashStore()
    monkeypatch.setattr(subject, "job_store", lambda: store)
    return store


def _ranks(count: int, **options: Any) -> list[_Rank]:
    ranks = []
    for rank in range(count):
        subject._num_coordinators.clear()
        ranks.append(_Rank(rank, count, **options))
    return ranks


@pytest.mark.usefixtures("store")
def test_the_first_to_ask_fixes_the_step_for_the_others_and_they_agree_on_the_next_as_well() -> None:
    first, second = (rank.run_to(100) for rank in _ranks(2))
    second.run_to(103)
    first.coordinator.request(CaptureRequest("a", 3))
    second.coordinator.request(CaptureRequest("b", 3))
    second.coordinator.request(CaptureRequest("a", 3))
    first.coordinator.request(CaptureRequest("b", 3))
    for rank in (first, second):
        rank.run_to(110)
        assert [(answer.id, answer.progress.state) for answer in rank.answers] == [("a", "accepted"), ("b", "accepted")]
        assert {answer.progress.aligned_by for answer in rank.answers} == {Alignment.STORE}
    starts = [[answer.progress.start_step for answer in rank.answers] for rank in (first, second)]
    assert starts == [[302, 306]] * 2  # 2 s are 200 steps; then the one after, its warm-up between


@pytest.mark.usefixtures("store")
def test_a_given_step_and_overlaps_are_decided_alike_in_whichever_order_they_arrive() -> None:
    first, second = (rank.run_to(10) for rank in _ranks(2))
    requests = [CaptureRequest("a", 5, start_step=50), CaptureRequest("b", 5, start_step=53)]
    for request in requests:
        first.coordinator.request(request)
    for request in reversed(requests):
        second.coordinator.request(request)
    for rank in (first, second):
        rank.run_to(20)
        assert {answer.id: answer.progress.state.value for answer in rank.answers} == {"a": "accepted", "b": "refused"}
    assert next(answer for answer in second.answers if answer.id == "a").progress.aligned_by is Alignment.STEP


def test_without_a_store_ranks_start_at_a_common_multiple_and_say_so() -> None:
    first, second = (rank.run_to(step) for rank, step in zip(_ranks(2), (101, 103), strict=True))
    at_ns = time.time_ns() + 10**9
    for rank in (first, second):
        rank.coordinator.request(CaptureRequest("a", 3, start_unix_ns=at_ns))
        rank.run_to(110)
    assert first.last() == second.last()
    assert first.last()[0] == "accepted"
    assert (first.last()[1] or 1) % 8 == 0
    assert first.last()[2] is Alignment.TIME
    first.coordinator.request(CaptureRequest("b", 1, start_step=400))
    first.run_to(112)
    assert first.last() == ("accepted", 400, Alignment.STEP)


def test_a_store_that_does_not_answer_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        num_calls = 0

        def compare_set(self, *_: str) -> bytes:
            Silent.num_calls += 1
            raise RuntimeError("timed out")

    monkeypatch.setattr(subject, "job_store", Silent)
    (rank, _) = _ranks(2)
    rank.run_to(100)
    rank.coordinator.request(CaptureRequest("a", 3))
    rank.coordinator.request(CaptureRequest("b", 3))
    rank.run_to(102)
    assert [answer.progress.aligned_by for answer in rank.answers] == [Alignment.TIME] * 2
    assert Silent.num_calls == 1


def test_one_rank_alone_starts_as_soon_as_the_profiler_is_prepared() -> None:
    rank = _Rank(0, 1).run_to(100)
    rank.coordinator.request(CaptureRequest("a", 3))
    rank.run_to(101)
    assert rank.last() == ("accepted", 102, Alignment.STEP)


@pytest.mark.usefixtures("store")
def test_a_young_process_is_asked_once_its_steps_have_a_length() -> None:
    (rank, _) = _ranks(2)
    rank.coordinator.request(CaptureRequest("a", 3))
    rank.coordinator.tick()
    assert rank.last() == ("accepted", None, None)
    rank.coordinator.request(CaptureRequest("a", 3))
    assert rank.answers[0] == rank.answers[1]
    rank.run_to(5)
    rank.coordinator.tick()
    rank.run_to(6)
    assert rank.last() == ("accepted", 207, Alignment.STORE)
    young = _Rank(1)
    young.coordinator.request(CaptureRequest("b", 3))
    young.coordinator.close()
    assert [(answer.progress.state, answer.progress.reason) for answer in young.answers[1:]] == [
        (CaptureState.FAILED, "training ended before it began")
    ]


@pytest.mark.usefixtures("store")
def test_a_time_far_ahead_becomes_a_step_only_when_it_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = [10**18]
    monkeypatch.setattr("stepscope.training.captures.coordinator.time.time_ns", lambda: now_ns[0])
    first, second = (rank.run_to(100) for rank in _ranks(2))
    for rank in (first, second):
        rank.coordinator.request(CaptureRequest("a", 3, start_unix_ns=now_ns[0] + 3600 * 10**9))
        rank.coordinator.tick()
        rank.run_to(5000)
        assert [answer.progress.start_step for answer in rank.answers] == [None]
    now_ns[0] += 3597 * 10**9
    for rank in (first, second):
        rank.coordinator.tick()
        rank.run_to(5001)
        assert rank.last() == ("accepted", 5302, Alignment.STORE)
        now_ns[0] += 10**9
    first.coordinator.request(
        CaptureRequest("b", 3, start_unix_ns=now_ns[0] + 10**11, deadline_unix_ns=now_ns[0] + 10**10)
    )
    assert (first.answers[-1].progress.state, first.answers[-1].progress.reason) == (
        "refused",
        "it is to start after its deadline",
    )


@pytest.mark.usefixtures("store")
def test_a_rule_of_one_rank_reaches_all_that_take_scheduled_captures_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_POLL_SECONDS", 0.0)
    first, second, third = (rank.run_to(100) for rank in _ranks(3, rule=True))
    third.coordinator._takes_scheduled = False
    first.coordinator.request_by_rule()
    second.coordinator.request_by_rule()  # it has fired there as well
    for rank in (first, second, third):
        rank.coordinator.tick()
        rank.run_to(102)
    assert first.last() == second.last()
    assert (first.answers[-1].id, first.last()[0], first.last()[2]) == ("rule-0", "accepted", Alignment.STORE)
    assert third.answers == []
    assert [rank.slow_steps.num_captures for rank in (first, second, third) if rank.slow_steps] == [1, 1, 1]
    second.coordinator.tick()
    assert len(second.answers) == 1


@pytest.mark.usefixtures("store")
def test_ranks_of_a_large_job_look_less_often_and_rules_start_later() -> None:
    rank = _Rank(0, 20_000, rule=True).run_to(100)
    assert rank.coordinator.tick_seconds == 10.0
    rank.coordinator.request_by_rule()
    rank.coordinator.tick()
    rank.run_to(101)
    assert rank.last() == ("accepted", 100 + 2 + 2025, Alignment.STORE)  # twice 10 s and a quarter


@pytest.mark.usefixtures("store")
def test_a_rank_that_reads_the_list_takes_what_another_nodes_agent_has_asked_of_it() -> None:
    first, second, third = (rank.run_to(100) for rank in _ranks(3, rule=True))
    first.coordinator.request(CaptureRequest("a", 3, ranks=(0, 1)))
    for rank in (first, second, third):
        rank.coordinator._polled_at = 0.0
        rank.coordinator.tick()
        rank.run_to(102)
    assert first.last() == second.last()
    assert third.answers == []
    second.coordinator.request(CaptureRequest("a", 3, ranks=(0, 1)))  # its own agent is late
    assert [answer.progress.state for answer in second.answers] == ["accepted", "accepted"]
    assert second.answers[0] == second.answers[1]


def test_what_has_been_answered_long_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_MAX_REMEMBERED", 4)
    rank = _Rank(0, 1).run_to(100)
    for number in range(9):
        rank.coordinator.request(CaptureRequest(str(number), 1, start_step=3))
        rank.coordinator.tick()
    assert len(rank.coordinator._progress) == 4
    assert {answer.progress.state for answer in rank.answers} == {CaptureState.REFUSED}
