"""Trace export: beside training, one at a time, and safe with a disk that does not answer."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from stepscope.training.captures import trace_export
from stepscope.training.captures.trace_export import TraceWriter, write_trace
from tests.training.processes import void


def test_failures_reach_the_one_who_asks_once(tmp_path: Path) -> None:
    writer = TraceWriter()
    (tmp_path / "t.plain").write_text('{"cut": ')
    writer.write(lambda: write_trace(None, tmp_path / "t.plain", tmp_path / "t.json.gz"))
    with pytest.raises(OSError, match="cut short"):
        writer.finish()
    writer.finish()
    assert list(tmp_path.iterdir()) == []


def test_one_trace_at_a_time() -> None:
    writer, running, order = TraceWriter(), threading.Event(), list[str]()

    def first() -> None:
        running.wait(5)
        order.append("first")

    writer.write(first)
    assert writer.is_writing
    running.set()
    writer.write(lambda: order.append("second"))
    writer.finish()
    assert order == ["first", "second"]


def test_a_disk_that_does_not_answer_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_export, "_STALLED_SECONDS", 0.6)
    writer, answers = TraceWriter(), threading.Event()
    writer.write(lambda: void(answers.wait(30)))
    assert not writer.wait(0.01)
    with pytest.raises(TimeoutError, match="does not answer"):
        writer.finish()
    assert writer.is_writing
    answers.set()
    writer.finish()


def test_a_writer_that_gets_on_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_export, "_STALLED_SECONDS", 0.6)
    writer = TraceWriter()

    def in_small_parts() -> None:
        for _ in range(75):
            time.sleep(0.02)

    writer.write(in_small_parts)
    writer.finish()
