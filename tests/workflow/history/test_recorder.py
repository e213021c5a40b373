"""Recorder without a network: rows and events of scrapes, a store that is slow, targets that go."""

from __future__ import annotations

import logging

import pytest

from stepscope.core.errors import UnreachableError
from stepscope.core.metrics import MetricKind
from stepscope.store.history.questions import HistoryEventKind, HistoryMetric
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


def test_entities_are_the_same_object_from_batch_to_batch_until_there_is_a_new_one() -> None:
    store = MemoryStore()
    recorder = Recorder(store)
    seen = []
    for seconds, names in enumerate((["n1", "n2"], ["n2"], ["n1", "n3"], ["n1"])):
        for name in names:
            _take(recorder, _target(name), seconds, b'a{gpu="0"} 1\n')
        store.blocks.clear()
        recorder.hand_over()
        (block,) = [block for block in store.blocks if "a" in block.columns]
        seen.append(block.entities)
        for place, name in zip(block.entity, names, strict=True):
            assert dict(block.entities[place])["instance"] == f"{name}:9455"
    assert seen[0] is seen[1]
    assert seen[2] is seen[3] is not seen[1]


def test_entities_that_are_gone_are_forgotten() -> None:
    store = MemoryStore()
    recorder = Recorder(store)
    for seconds in range(3000):
        _take(recorder, _target(), seconds, b'a{job="%d"} 1\na{job="stays"} 2\n' % seconds)
        store.blocks.clear()
        recorder.hand_over()
    (block,) = [block for block in store.blocks if "a" in block.columns]
    assert len(block.entities) < 1500
    stays = [dict(block.entities[place])["job"] for place in block.entity]
    assert dict(zip(stays, block.columns["a"].tolist(), strict=True)) == {"2999": 1.0, "stays": 2.0}


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


def test_a_store_that_cannot_be_written_is_counted() -> None:
    store = MemoryStore(is_full=True)
    recorder = Recorder(store)
    _take(recorder, _target(), 0, b"a 1\n")
    assert not recorder.hand_over()
    assert (recorder.counts.flushes, recorder.counts.failed_flushes) == (1, 1)


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
