"""A step log loses nothing that was noted, however many steps records are made of at a time."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepscope
from stepscope.core.loader_waits import MOST_INTERVALS, Instant
from stepscope.core.protocol.captures import Alignment, CaptureRequest
from stepscope.training import profiling_session
from stepscope.training.captures.plan import AgreedCapture, CaptureSlot
from stepscope.training.steps.scalars import DeviceScalarReader, StepScalarReader
from stepscope.training.steps.step_log import StepLog, StepNotes
from stepscope.training.steps.telemetry import NEVER, StepRecord
from tests.training.processes import fork

_NEVER_DUE = 10**30


def _log(mark: Any = lambda: None) -> StepLog:
    log = StepLog(mark, StepScalarReader(DeviceScalarReader()))
    log.begin(0)
    log.due_ns, log.due_step = _NEVER_DUE, NEVER
    return log


def _lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "steps" / "rank0.jsonl").read_text().splitlines()]


def test_steps_follow_each_other_without_a_gap() -> None:
    log, wall_ns = _log(), time.time_ns()
    for _ in range(3):
        log.end_step({})
    records = log.take()
    assert [record.index for record in records] == [0, 1, 2]
    assert [record.end_ns for record in records[:2]] == [record.start_ns for record in records[1:]]
    assert abs(records[0].start_ns - wall_ns) < 1e9
    assert log.take() == []


def test_it_is_due_by_time_by_step_when_asked_and_under_a_profiler() -> None:
    log = _log()
    assert not log.end_step({})
    log.due_step = 3
    assert [log.end_step({}) for _ in range(3)] == [False, True, True]
    log.due_step = NEVER
    log.ask_at_end()
    assert log.end_step({})
    log.due_step, log.due_ns = NEVER, 0
    assert log.end_step({})
    log.due_ns, log.is_traced = _NEVER_DUE, lambda: True
    assert log.end_step({})


def test_before_the_first_step_there_is_none() -> None:
    log = StepLog(lambda: None, StepScalarReader(DeviceScalarReader()))
    log.add(None, 0, None)
    assert (log.open_step(), log.newest(), log.running_step(), log.take()) == (None, None, 0, [])
    with pytest.raises(RuntimeError, match="with block"):
        log.end_step({})


def test_intervals_belong_to_their_step_also_when_there_are_very_many() -> None:
    log = _log()
    for name in ("forward", None) * (2 * MOST_INTERVALS):
        log.add_interval(name, (Instant(5), Instant(7)))
    log.end_step({})
    log.add("save", 0, "mark")
    log.end_step({})
    newest = log.newest()
    many, one = log.take()
    assert (many.data_wait_ns, many.phases) == (4 * MOST_INTERVALS, {"forward": 4 * MOST_INTERVALS})
    assert len(many.data_waits) == len(many.phase_intervals["forward"]) == MOST_INTERVALS
    assert one.phase_intervals["save"][0][0] == Instant(0, "mark")
    assert newest is not None
    assert (newest.index, newest.end_ns, newest.phases) == (1, one.end_ns, one.phases)


def test_figures_that_may_change_are_read_at_once() -> None:
    torch = pytest.importorskip("torch")
    log, loss = _log(), torch.tensor(1.5)
    log.end_step({"loss": loss, "tokens": 3})
    loss.fill_(9.0)
    log.end_step({"tokens": True, "text": "no number"})
    assert [record.figures for record in log.take()] == [{"loss": 1.5, "tokens": 3}, {"tokens": True}]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=30))
def test_notes_are_of_the_step_in_which_they_were_made(steps: list[tuple[int, bool]]) -> None:
    index = 0
    notes = StepNotes[int](lambda: index)
    waiting: list[StepRecord] = []
    found: dict[int, list[int]] = {}
    for number, (num_notes, is_taken) in enumerate(steps):
        index = number
        for _ in range(num_notes):
            notes.add(number)
        assert notes.num_running() == num_notes
        waiting.append(StepRecord(number, 0))
        if is_taken:
            found |= {record.index: own for record, own in notes.of(waiting)}
            waiting.clear()
    found |= {record.index: own for record, own in notes.of(waiting)}
    assert found == {number: [number] * num_notes for number, (num_notes, _) in enumerate(steps) if num_notes}


def test_notes_of_a_step_without_a_record_go_to_the_next() -> None:
    index = 0
    notes = StepNotes[str](lambda: index)
    notes.add("early")
    index = 2
    notes.add("own")
    first, second = StepRecord(1, 0), StepRecord(2, 0)
    assert [(record.index, own) for record, own in notes.of([first, second])] == [(1, ["early"]), (2, ["own"])]


@pytest.mark.parametrize("settle_every_ns", [0, 3_000_000, 10**12])
def test_lines_are_the_same_however_many_steps_are_settled_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settle_every_ns: int
) -> None:
    monkeypatch.setattr(profiling_session, "_SETTLE_EVERY_NS", settle_every_ns)
    with stepscope.profile("r", tmp_path, stepscope.every(10, active=2)) as prof:
        for number in range(25):
            with prof.phase("forward" if number % 2 else "other"):
                time.sleep(0.001)
            prof.step(loss=float(number), tokens=number)
    lines = _lines(tmp_path / "r")
    assert [(line["index"], line["loss"], line["tokens"]) for line in lines] == [(n, float(n), n) for n in range(25)]
    assert [list(line["phases"]) for line in lines] == [["forward" if n % 2 else "other"] for n in range(25)]
    assert [line["index"] for line in lines if line["state"] != "wait"] == [9, 10, 11, 19, 20, 21]
    assert [line["index"] for line in lines if line["captured"]] == [10, 11, 20, 21]
    assert [line["index"] for line in lines if line.get("prepare_ns")] == [8, 9, 18, 19]
    assert all(earlier["end_ns"] <= later["start_ns"] for earlier, later in pairwise(lines))
    assert all(line["end_ns"] - line["start_ns"] >= line["phases"].get("other", 0) for line in lines)


def test_evaluations_and_clipped_norms_are_of_their_step_in_the_middle_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(profiling_session, "_SETTLE_EVERY_NS", 10**12)
    model = torch.nn.Linear(2, 1)
    loader, batches = (torch.utils.data.DataLoader(torch.ones(64, 2), batch_size=4) for _ in range(2))
    training = iter(batches)
    with stepscope.profile("r", tmp_path, stepscope.every(100)) as prof:
        for number in range(12):
            if number in (3, 4):  # by the reading of a loader, and by the model's mode
                with torch.no_grad():
                    for _ in loader if number == 3 else [model.eval()]:
                        time.sleep(0.001)
            model.train()
            model.zero_grad()
            model(next(training)).sum().backward()
            if number % 2:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            prof.step()
    lines = _lines(tmp_path / "r")
    assert [line["index"] for line in lines if "evaluation" in line["phases"]] == [3, 4]
    assert [line["index"] for line in lines if "grad_norm" in line] == [1, 3, 5, 7, 9, 11]


def test_a_capture_that_is_asked_for_in_the_middle_of_a_batch_begins_with_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling_session, "_SETTLE_EVERY_NS", 10**12)
    with stepscope.profile("r", tmp_path, stepscope.every(100)) as prof:
        for number in range(16):
            if number == 6:
                assert prof._agent_link is not None
                request = CaptureRequest("asked", 2, start_step=10)
                asking = AgreedCapture(request, CaptureSlot(10, 2), Alignment.STEP)
                thread = threading.Thread(target=prof._agent_link.plan.post, args=(asking,))
                thread.start()
                thread.join()
            prof.step()
    lines = _lines(tmp_path / "r")
    assert [line["index"] for line in lines] == list(range(16))
    assert [line["index"] for line in lines if line["captured"]] == [10, 11]
    assert [line["index"] for line in lines if line["state"] == "warmup"] == [9]
    assert (tmp_path / "r" / "traces" / "step10" / "rank0.json.gz").exists()


def test_steps_that_are_not_settled_yet_are_kept_when_an_exception_ends_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling_session, "_SETTLE_EVERY_NS", 10**12)

    def train() -> None:
        with stepscope.profile("r", tmp_path, stepscope.every(100)) as prof:
            for number in range(7):
                prof.step(loss=float(number))
            raise ValueError("wrong data")

    with pytest.raises(ValueError, match="wrong data"):
        train()
    assert [line["loss"] for line in _lines(tmp_path / "r")] == [float(number) for number in range(7)]


def test_a_deadly_signal_finds_them_though_the_training_thread_does_not_come_back(tmp_path: Path) -> None:
    def train(_: Callable[[str], None]) -> None:
        profiling_session._SETTLE_EVERY_NS = 10**12
        with stepscope.profile("r", tmp_path, stepscope.every(100)) as prof:
            for number in range(5):
                prof.step(loss=float(number))
            noting = threading.Thread(target=prof._note_signal, args=(True,))
            noting.start()
            noting.join()
            os.kill(os.getpid(), signal.SIGKILL)

    assert fork(train).end() == -signal.SIGKILL
    assert [line["loss"] for line in _lines(tmp_path / "r")] == [float(number) for number in range(5)]


def test_a_forked_process_measures_nothing(tmp_path: Path) -> None:
    with stepscope.profile("r", tmp_path, stepscope.every(100)) as prof:
        prof.step()

        def child(_: Callable[[str], None]) -> None:
            prof.step()
            with prof.phase("in the child"):
                pass
            assert not prof.is_measuring

        assert fork(child).end() == 0
        prof.step()
    assert [(line["index"], line["phases"]) for line in _lines(tmp_path / "r")] == [(0, {}), (1, {})]


def test_another_thread_can_ask_for_the_running_step_and_the_newest(tmp_path: Path) -> None:
    with stepscope.profile("r", tmp_path, stepscope.every(100)) as prof:
        for _ in range(4):
            prof.step()
        seen: list[Any] = []
        thread = threading.Thread(target=lambda: seen.extend((prof._log.newest(), prof._log.open_step())))
        thread.start()
        thread.join()
    newest, running = seen
    assert (newest.index, running.number) == (3, 4)
    assert running.began_ns == newest.end_ns
