"""Is a trace written as torch would write it, and does training go on meanwhile?"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepscope.training.captures import trace_export
from stepscope.training.captures.trace_export import TraceWriter, save_recording, write_trace
from tests.training.processes import void

torch = pytest.importorskip("torch")


def _record(num_operators: int = 50) -> Any:
    from torch.profiler.profiler import _KinetoProfile

    profiler = _KinetoProfile(activities=[torch.profiler.ProfilerActivity.CPU])
    profiler.prepare_trace()
    profiler.start_trace()
    total = torch.zeros(2)
    for _ in range(num_operators):
        total = total + 1
    profiler.stop_trace()
    assert profiler.profiler is not None
    return profiler.profiler.kineto_results


def _longest_wait(work: Callable[[], None]) -> tuple[float, float]:
    """Seconds that `work` takes on another thread, and the longest time this one could not run meanwhile."""
    thread = threading.Thread(target=work)
    longest, begun = 0.0, time.perf_counter()
    before = begun
    thread.start()
    while thread.is_alive():
        now = time.perf_counter()
        longest, before = max(longest, now - before), now
    return time.perf_counter() - begun, longest


def test_the_native_way_writes_what_torch_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = _record()
    monkeypatch.setattr(type(recording), "save", lambda *_: pytest.fail("torch's own save holds the lock"))
    save_recording(recording, tmp_path / "ours.json")
    names = [event["name"] for event in json.loads((tmp_path / "ours.json").read_text())["traceEvents"]]
    assert names.count("aten::add") == 50


def test_other_threads_run_while_it_writes(tmp_path: Path) -> None:
    recording = _record(40_000)
    seconds, longest = _longest_wait(lambda: save_recording(recording, tmp_path / "t.json"))
    assert longest < 0.5 * seconds  # torch's own way: all of it


@pytest.mark.parametrize("missing", ["_native_save", "_address_of"])
def test_without_the_native_way_torch_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setattr(trace_export, missing, lambda *_: None)
    save_recording(_record(), tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


def test_an_object_that_does_not_hold_its_pointer_where_expected_is_no_address() -> None:
    class Other:
        def trace_start_ns(self) -> int:
            return 7

    assert trace_export._address_of(Other()) is None
    assert trace_export._address_of(2**62) is None  # the word behind the header is no address


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
    monkeypatch.setattr(trace_export, "_GIVES_UP_SECONDS", 0.6)
    writer, answers = TraceWriter(), threading.Event()
    writer.write(lambda: void(answers.wait(30)))
    assert not writer.wait(0.01)
    with pytest.raises(TimeoutError, match="does not answer"):
        writer.finish()
    assert writer.is_writing
    answers.set()
    writer.finish()


def test_a_writer_that_gets_on_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_export, "_GIVES_UP_SECONDS", 0.6)
    writer = TraceWriter()

    def in_small_parts() -> None:
        for _ in range(75):
            time.sleep(0.02)

    writer.write(in_small_parts)
    writer.finish()
