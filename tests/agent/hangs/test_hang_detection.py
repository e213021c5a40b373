"""Hang detection: a hanging run is reported once, a run in a phase is not."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from stepscope.agent.hangs.hang_detection import HangQuery, HangSource, RunWatch
from stepscope.collectors.host.processes import process_state
from stepscope.core.documents.hang import HangKind, LiveHang, LiveHangState, RankState
from stepscope.core.documents.node import TrainingRank
from stepscope.core.protocol.messages import Heartbeat, Hello


def _rank(rank: int, **fields: Any) -> TrainingRank:
    hello = Hello("r", "/runs/r", rank, rank, 2, 1000 + rank, "h", 1)
    heartbeat = Heartbeat(**({"age_ms": 50.0, "index": 9, "ms": 100.0} | fields))
    return TrainingRank("k", hello, heartbeat, hello.pid, 0, heartbeat_age_ms=100.0, step_age_ms=heartbeat.age_ms)


class _Answered:
    """A question that has its answer at once."""

    def __init__(self, told: LiveHang | None) -> None:
        self._told = told

    def is_over(self, _: float) -> bool:
        return True

    def answer(self) -> LiveHang | None:
        return self._told

    def close(self) -> None:
        pass


class _Node:
    """Two ranks that train, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ranks = [_rank(0), _rank(1)]
        self.told: LiveHang | None = None
        self.num_asked = 0
        self.source = HangSource(
            lambda: self.ranks,
            clock=lambda: self.now,
            wall_clock_ns=lambda: 1,
            process_state=lambda pid: "T" if pid == 1001 else "S",
            ask=self._ask,
        )
        for step in range(3, 10):
            self.ranks = [_rank(rank, index=step) for rank in (0, 1)]
            self.source.collect()

    def _ask(self, *_: object, **__: object) -> Any:
        self.num_asked += 1
        return _Answered(self.told)

    def pass_time(self, seconds: int, *, mute: int | None = None) -> dict[str, list[dict[str, str]]]:
        """The labels of what is told, by metric and finding, after all steps have stood so long."""
        for _ in range(seconds):
            self.now += 1.0
            self.ranks = [
                replace(
                    rank,
                    step_age_ms=(rank.step_age_ms or 0.0) + 1e3,
                    heartbeat_age_ms=rank.heartbeat_age_ms + 1e3 * (rank.rank == mute),
                )
                for rank in self.ranks
            ]
            collection = self.source.collect()
        found: dict[str, list[dict[str, str]]] = {}
        for reading in collection.readings:
            found.setdefault(reading.metric, []).append(dict(reading.labels))
        for finding in collection.findings:
            found.setdefault(finding.code, []).append(dict(finding.labels))
        return found


@pytest.fixture
def node() -> _Node:
    return _Node()


def _hang(*ranks: int, kind: HangKind = HangKind.HOST) -> LiveHang:
    return LiveHang(LiveHangState.HANG, kind, ranks=list(ranks), summary="rank 1 sleeps")


def test_a_hang_is_told_with_the_guilty_within_20_s_and_said_once(
    node: _Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.told = _hang(1)
    told = node.pass_time(18)
    assert told["stepscope_training_hang"] == [{"run": "r", "kind": "host"}]
    assert told["stepscope_training_hang_guilty"] == [{"run": "r", "rank": "1"}]
    assert told["training_hang"] == [{"run": "r", "kind": "host", "ranks": "1"}]
    node.pass_time(60)
    node.ranks = [_rank(0, index=10), _rank(1, index=10)]
    assert node.pass_time(1) == {}
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert lines == ["run r hangs for 16 s, host: rank 1 sleeps", "the hang of run r is over: its steps go on"]


@pytest.mark.parametrize("state", [LiveHangState.BUSY, LiveHangState.UNDECIDED])
def test_ranks_that_wait_for_one_at_work_are_no_hang_and_are_asked_ever_more_seldom(
    node: _Node, state: LiveHangState
) -> None:
    node.told = LiveHang(state, summary="phase checkpoint")
    assert node.pass_time(600) == {}
    assert node.num_asked < 40


def test_ranks_that_leave_one_after_the_other_when_long_work_ends_are_no_hang(node: _Node) -> None:
    node.told = LiveHang(LiveHangState.BUSY, summary="phase checkpoint")
    assert node.pass_time(60) == {}
    node.told, num_asked = replace(_hang(1), silent_ranks=[1]), node.num_asked
    while node.num_asked == num_asked:
        assert node.pass_time(1) == {}
    assert node.pass_time(1) == {}
    assert node.pass_time(6)["training_hang"] == [{"run": "r", "kind": "host", "ranks": "1"}]  # it stays silent


def test_without_files_who_is_silent_is_named_with_what_the_kernel_says(node: _Node) -> None:
    assert node.pass_time(23, mute=1)["training_hang"] == [{"run": "r", "kind": "unknown", "ranks": "1"}]
    assert "process 1001 of rank 1 is stopped" in node.source.collect().findings[0].message


def test_without_files_a_process_that_is_gone_is_named(node: _Node) -> None:
    node.pass_time(2)
    node.ranks = node.ranks[:1]
    assert node.pass_time(22)["training_hang"] == [{"run": "r", "kind": "unknown", "ranks": "1"}]


def test_without_files_a_phase_of_another_excuses_silence_and_nobody_else_is_blamed(node: _Node) -> None:
    node.ranks = [_rank(0, doing="checkpoint"), node.ranks[1]]
    assert node.pass_time(100, mute=1) == {}
    assert _Node().pass_time(100) == {}


def test_the_end_of_all_processes_is_the_end_of_the_hang(node: _Node, caplog: pytest.LogCaptureFixture) -> None:
    node.told = _hang(1)
    node.pass_time(18)
    node.ranks = []
    assert node.pass_time(1) == {}
    assert "its processes have ended" in caplog.text


def test_first_steps_and_steps_of_usual_length_are_not_doubted() -> None:
    watch = RunWatch()
    watch.observe([_rank(0, index=0, age_ms=500e3)], 0.0)
    assert not watch.is_suspect
    for step in range(10):
        watch.observe([_rank(0, index=step, ms=20e3)], 0.0)
    assert watch.limit_seconds == 80.0


@pytest.fixture
def question(tmp_path: Path) -> Iterator[HangQuery]:
    live = tmp_path / "flight" / "live"
    live.mkdir(parents=True)
    now_ns = time.time_ns()
    for rank in range(2):
        where = ("all_reduce", "sl\nep")[rank]
        state = RankState(rank, "h", 5, now_ns - 4_000_000_000, now_ns, 16.0, 12.0, True, "", where, rank == 0)
        (live / f"rank{rank}.state").write_text(json.dumps(asdict(state)))
    asked = HangQuery(str(tmp_path), pid=os.getpid(), uid=os.geteuid(), now=time.monotonic())
    yield asked
    asked.close()


def test_a_real_question_is_answered_in_one_line_by_a_process_of_its_own(question: HangQuery) -> None:
    while not question.is_over(time.monotonic()):
        time.sleep(0.02)
    told = question.answer()
    assert told is not None
    assert (told.state, told.kind, told.ranks) == (LiveHangState.HANG, HangKind.HOST, [1])
    assert "sl\\nep" in told.summary


def test_a_question_that_hangs_in_the_kernel_is_left_behind(
    question: HangQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the run's directory is on a server that is gone."""
    waits: list[float | None] = []

    def hangs(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        waits.append(timeout)
        raise subprocess.TimeoutExpired(process.args, timeout or 0.0)

    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "wait", hangs)
        question.close()
    assert len(waits) == 1
    assert waits[0] is not None
    question._process.wait()


def test_the_state_of_a_process_is_the_kernels(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    for content, state in (("7 (a) b) T 1", "T"), ("7 (a) Z 1", ""), ("", "")):
        (tmp_path / "7" / "stat").write_text(content)
        assert process_state(7, proc=tmp_path) == state
    assert process_state(8, proc=tmp_path) == ""
    assert process_state(os.getpid()) in ("R", "S")
