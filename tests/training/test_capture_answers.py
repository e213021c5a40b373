"""Every capture request is answered with its result, and measuring continues whatever that was."""

from __future__ import annotations

import gc
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.core.protocol.captures import CaptureProgress, CaptureRequest, CaptureState, EarlyStop
from stepscope.core.protocol.messages import Answer, Bye, Cancel, Heartbeat, Hello
from stepscope.training import Schedule, once, slow_step
from stepscope.training.profiling_session import Profile
from tests.training.stand_in_agent import StandInAgent

torch = pytest.importorskip("torch")


pytestmark = pytest.mark.usefixtures("no_job")


@pytest.fixture(autouse=True)
def _agents_socket(socket_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_AGENT_SOCKET", str(socket_file))


class _Loop:
    """A training loop that goes on until something is so."""

    def __init__(self, prof: Profile, agent: StandInAgent) -> None:
        self.step = 0
        self.extra_seconds: Callable[[], float] = lambda: 0.0
        self._prof, self._agent = prof, agent
        self._weight = torch.ones(16, 16, requires_grad=True)
        self.until(lambda: any(step.index for step in agent.of(Heartbeat)))

    def until(self, is_so: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < deadline, self._agent.of(Answer)
            (self._weight @ self._weight).sum().backward()
            time.sleep(0.002 + self.extra_seconds())
            self._prof.step(tokens=1)
            self.step += 1

    def ask(self, request: CaptureRequest) -> CaptureProgress:
        """The last word on the request."""
        self._agent.say(request)
        return self.final(request.id)

    def final(self, capture_id: str) -> CaptureProgress:
        self.until(lambda: bool(self._agent.states(capture_id)) and self._agent.last(capture_id).state.is_final)
        return self._agent.last(capture_id)


def _profile(folder: Path, schedule: Schedule | None = None, **options: Any) -> Profile:
    prof: Profile = stepscope.profile("r", folder, schedule or Schedule(first=1_000_000), **options)
    return prof


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "r" / "steps" / "rank0.jsonl").read_text().splitlines()]


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """All but those about the step times of a busy machine."""
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    return [record.getMessage() for record in warnings if "anomal" not in record.name]


def test_a_relative_folder_is_told_as_where_it_is_also_after_the_script_went_elsewhere(
    tmp_path: Path, socket_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default is one; the agent takes a path for its run's own only inside the folder that it was told."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    with StandInAgent(socket_file) as agent, _profile(Path("runs")) as prof:
        loop = _Loop(prof, agent)
        monkeypatch.chdir(elsewhere)
        done = loop.ask(CaptureRequest("a", 2))
        (told,) = {hello.run_directory for hello in agent.of(Hello)}
    assert done.path is not None
    assert Path(done.path).is_file()
    assert Path(done.path).is_relative_to(told)
    assert Path(told).is_relative_to(tmp_path / "runs")
    assert not list(elsewhere.iterdir())


def test_while_another_profiler_records_a_request_fails_and_the_next_one_is_taken(
    tmp_path: Path, socket_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with StandInAgent(socket_file) as agent, _profile(tmp_path) as prof:
        loop = _Loop(prof, agent)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            failed = loop.ask(CaptureRequest("a", 2))
        done = loop.ask(CaptureRequest("b", 2))
    assert failed.state is CaptureState.FAILED
    assert "another torch profiler is recording" in str(failed.reason)
    assert done.state is CaptureState.DONE
    (warning,) = _warnings(caplog)
    assert "the requested capture of step" in warning
    captured = [line["index"] for line in _lines(tmp_path) if line["captured"]]
    assert captured == [done.start_step, (done.start_step or 0) + 1]


def test_another_profiler_that_begins_meanwhile_ends_it_with_the_whole_steps_before(
    tmp_path: Path, socket_file: Path
) -> None:
    with StandInAgent(socket_file) as agent, _profile(tmp_path) as prof:
        loop = _Loop(prof, agent)
        agent.say(CaptureRequest("a", 400))
        loop.until(lambda: "started" in agent.states("a"))
        seen = loop.step
        loop.until(lambda: loop.step == seen + 5)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
            torch.ones(8, 8) @ torch.ones(8, 8)
        done = loop.final("a")
    assert (done.state, done.stopped_by) == (CaptureState.DONE, EarlyStop.OTHER_PROFILER)
    assert 5 <= (done.steps or 0) < 400
    assert "aten::mm" in {event.name for event in theirs.events()}


def test_a_trace_that_cannot_be_written_is_an_answer_and_measuring_goes_on(tmp_path: Path, socket_file: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "traces").write_text("no folder")
    with StandInAgent(socket_file) as agent, _profile(tmp_path) as prof:
        loop = _Loop(prof, agent)
        failed = loop.ask(CaptureRequest("a", 1))
        (tmp_path / "r" / "traces").unlink()
        done = loop.ask(CaptureRequest("b", 1))
    assert (failed.state, done.state) == (CaptureState.FAILED, CaptureState.DONE)
    assert "traces" in str(failed.reason)
    assert len(_lines(tmp_path)) == loop.step


def test_who_asks_for_scheduled_steps_gets_the_scheduled_trace(tmp_path: Path, socket_file: Path) -> None:
    with StandInAgent(socket_file) as agent, _profile(tmp_path, Schedule(first=2000, active=3)) as prof:
        loop = _Loop(prof, agent)
        agent.say(CaptureRequest("part", 1, start_step=2001))
        agent.say(CaptureRequest("over", 2, start_step=2002))
        part, over = loop.final("part"), loop.final("over")
    assert (part.state, part.start_step, part.steps) == (CaptureState.DONE, 2000, 3)
    assert [
        answer.progress.joined for answer in agent.of(Answer) if answer.progress.state is CaptureState.ACCEPTED
    ] == [True]
    assert over.state is CaptureState.REFUSED
    assert "the capture of steps 2000 to 2002 by the schedule" in str(over.reason)


def test_a_capture_that_slows_training_more_than_allowed_ends_with_whole_steps(
    tmp_path: Path, socket_file: Path
) -> None:
    with StandInAgent(socket_file) as agent, _profile(tmp_path) as prof:
        loop = _Loop(prof, agent)
        loop.until(lambda: loop.step >= 40)
        loop.extra_seconds = lambda: 0.25 if prof._captures is not None and prof._captures.is_capturing else 0.0
        answer = loop.ask(CaptureRequest("a", 20, max_overhead=2.0))
    assert (answer.state, answer.stopped_by) == (CaptureState.DONE, EarlyStop.MAX_OVERHEAD)
    assert answer.steps == 1
    assert answer.overhead is not None
    assert answer.overhead > 2.0
    assert sum(line["captured"] for line in _lines(tmp_path)) == 1


def test_deadlines_refuse_cancel_and_end_captures(tmp_path: Path, socket_file: Path) -> None:
    with StandInAgent(socket_file) as agent, _profile(tmp_path) as prof:
        loop = _Loop(prof, agent)
        past = loop.ask(CaptureRequest("past", 1, deadline_unix_ns=1))
        now_ns = time.time_ns()
        late = CaptureRequest("late", 1, start_unix_ns=now_ns + 3 * 10**9, deadline_unix_ns=now_ns + 3 * 10**9 + 1)
        too_late = loop.ask(late)
        loop.until(lambda: loop.step >= 20)
        missed = CaptureRequest("missed", 1, start_step=loop.step + 300, deadline_unix_ns=time.time_ns() + 300_000_000)
        missed_answer = loop.ask(missed)
        loop.extra_seconds = lambda: 0.05
        ended = loop.ask(CaptureRequest("ended", 200, deadline_unix_ns=time.time_ns() + 5_000_000_000))
    assert (past.state, past.reason) == (CaptureState.REFUSED, "its deadline has passed")
    assert too_late.state is CaptureState.REFUSED
    assert "which is after its deadline" in str(too_late.reason)
    assert missed_answer.state is CaptureState.CANCELLED
    assert "its deadline passed before it began" in str(missed_answer.reason)
    assert not (tmp_path / "r" / "traces" / f"step{missed.start_step}").exists()
    assert (ended.state, ended.stopped_by) == (CaptureState.DONE, EarlyStop.DEADLINE)
    assert 0 < (ended.steps or 0) < 150


def test_one_that_is_prepared_and_one_that_waits_can_be_cancelled(tmp_path: Path, socket_file: Path) -> None:
    with StandInAgent(socket_file) as agent, _profile(tmp_path) as prof:
        loop = _Loop(prof, agent)
        start = loop.step + 500
        agent.say(CaptureRequest("far", 1, start_step=start))
        loop.until(lambda: agent.states("far") == ["accepted"])
        agent.say(Cancel("far"))
        assert loop.final("far").state is CaptureState.CANCELLED
        agent.say(CaptureRequest("near", 50, start_step=loop.step + 600))
        loop.until(lambda: agent.states("near") == ["accepted"])
        near = agent.last("near").start_step or 0
        loop.until(lambda: loop.step >= near - 1)  # its profiler is prepared
        agent.say(Cancel("near"))
        agent.wait_until(lambda: bool(prof._agent_link is not None and prof._agent_link.plan._inbox))
        assert loop.final("near").state is CaptureState.CANCELLED
        agent.say(Cancel("near"))
        loop.until(lambda: agent.states("near").count("cancelled") == 2)
        agent.say(Cancel("unknown"))
        assert loop.final("unknown").state is CaptureState.REFUSED
        done = loop.ask(CaptureRequest("again", 1))
    assert done.state is CaptureState.DONE
    assert [path.parent.name for path in tmp_path.rglob("rank0.json.gz")] == [f"step{done.start_step}"]


def test_at_the_end_of_training_whole_steps_are_kept_and_the_rest_fails(tmp_path: Path, socket_file: Path) -> None:
    with StandInAgent(socket_file) as agent:
        with _profile(tmp_path) as prof:
            loop = _Loop(prof, agent)
            agent.say(CaptureRequest("open", 1000))
            agent.say(CaptureRequest("never", 1, start_step=10**6 + 7))
            loop.until(lambda: "started" in agent.states("open") and "accepted" in agent.states("never"))
            seen = loop.step
            loop.until(lambda: loop.step >= seen + 3)
        (done,), (failed,) = agent.wait_final("open"), agent.wait_final("never")
    assert (done.state, done.stopped_by) == (CaptureState.DONE, EarlyStop.TRAINING_ENDED)
    assert done.steps is not None
    assert done.steps >= 3
    assert done.path is not None
    assert Path(done.path).is_file()
    assert (failed.state, failed.reason) == (CaptureState.FAILED, "training ended before it began")


def test_an_unreadable_request_too_many_and_the_rules_own_names_are_refused(tmp_path: Path, socket_file: Path) -> None:
    with StandInAgent(socket_file) as agent, _profile(tmp_path) as prof:
        loop = _Loop(prof, agent)
        agent.say(b'{"type":"capture","id":"odd","steps":"three"}\n')
        assert loop.final("odd").reason == 'capture: "steps" must be a whole number from 1 to 1000'
        assert loop.ask(CaptureRequest("rule-0", 1)).state is CaptureState.REFUSED
        for number in range(9):
            agent.say(CaptureRequest(f"n{number}", 1, start_step=10**6 + 10 * number))
        assert "8 captures are open already" in str(loop.final("n8").reason)


def test_slow_steps_are_captured_by_a_job_of_one_rank_and_the_agent_is_told(tmp_path: Path, socket_file: Path) -> None:
    rule = slow_step(factor=20.0, times=3, steps=2, most=1)
    with StandInAgent(socket_file) as agent, _profile(tmp_path, once(wait=3, active=1), capture_when=rule) as prof:
        loop = _Loop(prof, agent)
        loop.until(lambda: loop.step >= 40)
        before = loop.step
        loop.extra_seconds = lambda: 0.15
        answer = loop.final("rule-0")
        loop.until(lambda: loop.step >= before + 12)
    assert answer.state is CaptureState.DONE
    assert answer.steps == 2
    assert before + 3 <= (answer.start_step or 0) <= before + 20
    assert len(list(tmp_path.rglob("rank0.json.gz"))) == 2  # with the scheduled one: at most one by the rule


def test_a_profile_that_is_never_left_and_gone_says_goodbye(tmp_path: Path, socket_file: Path) -> None:
    with StandInAgent(socket_file) as agent:
        prof = _profile(tmp_path).__enter__()
        agent.wait_until(lambda: bool(agent.of(Hello)))
        assert prof._agent_link is not None
        thread = prof._agent_link._connection._thread
        assert thread is not None
        prof.step()
        del prof
        gc.collect()
        thread.join(5.0)
        assert not thread.is_alive()
        agent.wait_until(lambda: bool(agent.of(Bye)))


def test_what_is_no_rule_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wrong: Any = "slow"
    with _profile(tmp_path, capture_when=wrong) as prof:
        prof.step()
    (warning,) = _warnings(caplog)
    assert "capture_when is made by stepscope.slow_step" in warning
