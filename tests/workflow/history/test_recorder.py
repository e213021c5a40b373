"""Recorder without a network: rows and events of scrapes, a store that is slow, targets that go."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from stepscope.core.errors import UnreachableError
from stepscope.core.metrics import MetricKind
from stepscope.store.history import writer as writer_module
from stepscope.store.history.embedded import history_at
from stepscope.store.history.places import LocalPlace
from stepscope.store.history.questions import GroupBy, HistoryEventKind, HistoryMetric, Question, TimeRange
from stepscope.workflow.history import recorder as recorder_module
from stepscope.workflow.history.recorder import Recorder, not_recorded
from stepscope.workflow.history.scrapes import Scrape, ScrapeTarget, target_of
from stepscope.workflow.nodes.agent_client import agent_client
from tests.workflow.history.sinks import MemoryStore

_S = 10**9


def _target(name: str = "n1") -> ScrapeTarget:
    return target_of(agent_client(name), {"cluster": "east"})


def _take(recorder: Recorder, target: ScrapeTarget, seconds: int, page: bytes | None) -> None:
    answer = UnreachableError("the agent has not answered within 10 s") if page is None else (200, page)
    if isinstance(answer, UnreachableError):
        answer.__cause__ = TimeoutError()
    recorder.take(Scrape(target, seconds * _S, 0.5, answer), float(seconds))


def test_rows_of_several_targets_and_times_are_one_block() -> None:
    store = MemoryStore()
    recorder = Recorder(store)
    for seconds in (0, 15):
        for name in ("n1", "n2"):
            _take(recorder, _target(name), seconds, b'a{gpu="0"} %d\na{gpu="1"} 2\nb{gpu="1"} 3\n' % seconds)
    assert recorder.hand_over()
    assert len(store.blocks) == 2
    (block,) = [block for block in store.blocks if "a" in block.columns]
    assert [dict(labels)["instance"] for labels in block.entities] == ["n1:9455"] * 2 + ["n2:9455"] * 2
    assert block.entity.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert (block.times_ns // _S).tolist() == [0] * 4 + [15] * 4
    assert block.columns["a"].tolist() == [0.0, 2.0, 0.0, 2.0, 15.0, 2.0, 15.0, 2.0]
    assert [value == 3.0 for value in block.columns["b"].tolist()] == [False, True] * 4


def test_kinds_are_told_where_names_say_otherwise() -> None:
    recorder = Recorder(MemoryStore())
    kinds = {b"a": b"counter", b"b_total": b"counter", b"c_total": b"gauge", b"d": b"gauge"}
    page = b"".join(b"# TYPE %s %s\n%s 1\n" % (name, kind, name) for name, kind in kinds.items())
    _take(recorder, _target(), 0, page)
    expected = [HistoryMetric("a", MetricKind.COUNTER, None), HistoryMetric("c_total", MetricKind.GAUGE, None)]
    assert sorted(recorder.new_kinds(), key=lambda metric: metric.name) == expected
    _take(recorder, _target("n2"), 15, page)
    assert recorder.new_kinds() == []


def test_a_store_that_is_too_slow_is_a_gap_of_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder_module, "_MAX_WAITING_BYTES", 50)
    store = MemoryStore()
    recorder = Recorder(store)
    for seconds in range(0, 60, 15):
        _take(recorder, _target(), seconds, b"a 1\nb 2\nc 3\nd 4\n")
    recorder.hand_over()
    _take(recorder, _target(), 60, b"a 1\nb 2\nc 3\nd 4\n")
    recorder.hand_over()
    (event,) = store.events.values()
    assert (event.kind, event.code, event.labels) == (HistoryEventKind.GAP, "not_kept", ())
    assert (event.start_ns, event.end_ns) == (15 * _S, 60 * _S)
    assert [time_ns // _S for time_ns, _ in store.values("a")["n1:9455"]] == [0, 60]
    assert recorder.counts.left_out["store"] == 12
    assert caplog.text.count("the store is too slow") == 1


def test_a_store_that_cannot_be_written_gets_its_events_again_and_what_it_lost_is_a_gap() -> None:
    store = MemoryStore(is_full=True)
    recorder = Recorder(store)
    for number in range(4):
        _take(recorder, _target(), 15 * number, None if number == 1 else b"a 1\n")
        store.events.clear()  # it was given them and lost them
        assert not recorder.hand_over()
    store.num_lost = 2
    store.events.clear()
    store.is_full = False
    assert recorder.hand_over()
    found = {event.code: (event.start_ns // _S, event.end_ns) for event in store.events.values()}
    assert found == {"timed_out": (15, 30 * _S), "not_kept": (0, 30 * _S)}
    assert (recorder.counts.flushes, recorder.counts.failed_flushes) == (5, 4)
    store.events.clear()
    assert recorder.hand_over()
    assert store.events == {}


def test_a_full_disk_with_the_real_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "MAX_PENDING_BYTES", 1)
    write = LocalPlace.write
    is_full = [False]

    def full(self: LocalPlace, path: str, content: bytes) -> None:
        if is_full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, path, content)

    monkeypatch.setattr(LocalPlace, "write", full)
    begin = 1_790_000_000
    with writer_module.HistoryWriter(tmp_path / "history", clock=lambda: begin * _S) as writer:
        recorder = Recorder(writer)
        for number in range(6):
            is_full[0] = 1 <= number <= 3
            _take(recorder, _target(), begin + 15 * number, None if number == 2 else b"a %d\n" % number)
            assert recorder.hand_over() is not is_full[0]
    history = history_at(tmp_path / "history")
    span = TimeRange((begin - 15) * _S, (begin + 90) * _S, 15 * _S)
    (values,) = history.range(Question("a", (GroupBy.NODE,)), span).values
    assert [None if value != value else value for value in values.tolist()] == [0.0, None, None, None, 4.0, 5.0, None]
    events = {event.code: (event.start_ns // _S - begin, event.end_ns) for event in history.events(0, 2**62)}
    assert events == {"timed_out": (30, (begin + 45) * _S), "not_kept": (15, (begin + 60) * _S)}


def test_a_target_that_is_forgotten_leaves_nothing_open() -> None:
    store = MemoryStore()
    recorder = Recorder(store)
    _take(recorder, _target(), 0, None)
    recorder.forget([_target()], 5 * _S)
    recorder.hand_over()
    assert recorder.num_targets == 0
    assert [(event.code, event.end_ns) for event in store.events.values()] == [("timed_out", 5 * _S)]


def test_many_changes_at_once_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="stepscope.workflow.history")
    recorder = Recorder(MemoryStore())
    for number in range(100):
        _take(recorder, _target(f"n{number}"), 0, None if number % 2 else b"<html>\n")
    recorder.hand_over()
    for number in range(100):
        _take(recorder, _target(f"n{number}"), 15, b"a 1\n")
    recorder.hand_over()
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "100 targets do not answer with a page: not_a_page 50, timed_out 50",
        "100 targets answer again",
    ]


def test_the_time_without_a_recorder_is_a_gap_of_all() -> None:
    store = MemoryStore()
    recorder = Recorder(store)
    recorder.add_event(not_recorded(10 * _S, 70 * _S))
    recorder.hand_over()
    (event,) = store.events.values()
    assert (event.code, event.labels, event.start_ns, event.end_ns) == ("not_recorded", (), 10 * _S, 70 * _S)
