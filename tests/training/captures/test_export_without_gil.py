"""Export: the file equals torch's, and other threads run while it is written and freed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepscope.training.captures import trace_export
from stepscope.training.captures.trace_export import free_recording, save_recording

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


def _least_share_waited(work: Callable[[Any], None]) -> float:
    """Of three recordings: a busy machine may keep this thread waiting for reasons of its own."""
    return min(_share_waited(work, _record(40_000)) for _ in range(3))


def _share_waited(work: Callable[[Any], None], recording: Any) -> float:
    """The longest time that this thread could not run while another did `work` on the recording, as a share of that."""
    thread = threading.Thread(target=work, args=(recording,))
    longest, begun = 0.0, time.perf_counter()
    before = begun
    thread.start()
    while thread.is_alive():
        now = time.perf_counter()
        longest, before = max(longest, now - before), now
    return longest / (time.perf_counter() - begun)


def test_the_native_way_writes_what_torch_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = _record()
    monkeypatch.setattr(type(recording), "save", lambda *_: pytest.fail("torch's own save holds the lock"))
    save_recording(recording, tmp_path / "ours.json")
    names = [event["name"] for event in json.loads((tmp_path / "ours.json").read_text())["traceEvents"]]
    assert names.count("aten::add") == 50


def test_other_threads_run_while_it_writes(tmp_path: Path) -> None:
    share = _least_share_waited(lambda recording: save_recording(recording, tmp_path / "t.json"))
    assert share < 0.5  # torch's own way: all of it


@pytest.mark.parametrize("missing", ["_native", "_address_of"])
def test_without_the_native_way_torch_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setattr(trace_export, missing, lambda *_: None)
    save_recording(_record(), tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


def test_other_threads_run_while_it_is_freed() -> None:
    assert _least_share_waited(free_recording) < 0.5  # torch's own way: all of it


def test_what_is_freed_is_an_empty_result() -> None:
    recording = _record()
    assert recording.trace_start_ns()
    for _ in range(3):
        free_recording(recording)
        assert recording.trace_start_ns() == 0
        assert recording.events() == []
    del recording  # Python frees what is left


@pytest.mark.parametrize("missing", ["_native", "_address_of"])
def test_without_the_native_way_python_frees_it(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setattr(trace_export, missing, lambda *_: None)
    recording = _record()
    began = recording.trace_start_ns()
    free_recording(recording)
    assert recording.trace_start_ns() == began


def test_an_object_that_does_not_hold_its_pointer_where_expected_is_no_address() -> None:
    class Other:
        def trace_start_ns(self) -> int:
            return 7

    assert trace_export._address_of(Other()) is None
    assert trace_export._address_of(2**62) is None  # the word behind the header is no address
