"""Device times of a step come from marks that the GPU has passed, and are unknown where a mark is missing."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.loader_waits import MOST_INTERVALS, Instant, Interval
from stepscope.training.steps.device_times import DeviceClock, DeviceStep, ask_how_far
from stepscope.training.steps.listeners import PendingSteps
from stepscope.training.steps.scalars import DeferredScalars, DeviceScalarReader, StepScalarReader
from stepscope.training.steps.step_log import StepLog
from stepscope.training.steps.telemetry import StepRecord, UnprofiledStepTime

_MS = 1_000_000


class _Gpu:
    """A GPU that passes a mark at `now_ms`, once it is recorded."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.passes = True
        self.fault: str | None = None
        self.is_initialized = self.takes_marks = True
        self.device = 0
        self.num_events = 0
        self.is_capturing = False


class _Event:
    gpu: _Gpu

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.gpu.num_events += 1

    def record(self, stream: SimpleNamespace) -> None:
        assert stream.device_index == self.gpu.device
        if not self.gpu.takes_marks:
            raise RuntimeError("CUDA error: out of memory")
        self.at_ms = self.gpu.now_ms

    def query(self) -> bool:
        if self.gpu.fault:
            raise RuntimeError(self.gpu.fault)
        return self.gpu.passes

    def elapsed_time(self, later: _Event) -> float:
        return later.at_ms - self.at_ms


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> _Gpu:
    gpu = _Event.gpu = _Gpu()
    cuda = SimpleNamespace(
        is_initialized=lambda: gpu.is_initialized,
        is_current_stream_capturing=lambda: gpu.is_capturing,
        Event=_Event,
        current_device=lambda: gpu.device,
        current_stream=lambda: SimpleNamespace(device_index=gpu.device),
    )
    core = SimpleNamespace(_cuda_getCurrentStream=lambda device: (0, device, 1))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, _C=core))
    return gpu


class _Clock(DeviceClock):
    """Ends steps as a step's log does."""

    def __init__(self) -> None:
        super().__init__()
        self._log = StepLog(self.mark, StepScalarReader(DeviceScalarReader()))

    def end_step(self, index: int, of: StepRecord) -> StepRecord:
        self.look()
        if self._log.open is None:
            self._log.begin(index)
        self._log.end_step({})
        (record,) = self._log.take()
        of.end_ns, of.device = 2 * _MS, record.device
        return of


def _end(clock: _Clock, gpu: _Gpu, index: int, now_ms: float, record: StepRecord | None = None) -> StepRecord:
    gpu.now_ms = now_ms
    return clock.end_step(index, StepRecord(index, 0) if record is None else record)


def _interval(clock: _Clock, gpu: _Gpu, begin_ms: float, end_ms: float) -> Interval:
    clock.look()
    gpu.now_ms = begin_ms
    began = clock.now()
    gpu.now_ms = end_ms
    return began, clock.now()


def _settled(records: list[StepRecord]) -> list[StepRecord]:
    written: list[StepRecord] = []
    pending = PendingSteps([], written.append)
    for record in records:
        pending.add(record)
    return written


def test_a_step_lasts_from_the_mark_before_it_and_the_first_has_none(gpu: _Gpu) -> None:
    clock = _Clock()
    written = _settled([_end(clock, gpu, index, now_ms) for index, now_ms in enumerate((100, 140, 185))])
    assert [record.device_ns for record in written] == [None, 40 * _MS, 45 * _MS]
    assert all(record.device is None for record in written)


def test_intervals_of_a_step_are_added_up_by_name(gpu: _Gpu) -> None:
    clock, record = _Clock(), StepRecord(0, 0)
    record.add_data_wait(_interval(clock, gpu, 1, 4))
    record.add_data_wait(_interval(clock, gpu, 5, 6))
    record.add_phase("checkpoint", _interval(clock, gpu, 6, 26))
    (written,) = _settled([_end(clock, gpu, 0, 30, record)])
    assert (written.exposed_data_wait_ns, written.exposed_phases) == (4 * _MS, {"checkpoint": 20 * _MS})
    assert not written.data_waits
    assert not written.phase_intervals
    (after,) = _settled([_end(clock, gpu, 1, 40)])
    assert (after.exposed_data_wait_ns, after.exposed_phases) == (None, {})


def test_an_interval_without_a_mark_makes_the_time_of_its_name_unknown_in_that_step(gpu: _Gpu) -> None:
    clock, first, second = _Clock(), StepRecord(0, 0), StepRecord(1, 0)
    first.add_data_wait(_interval(clock, gpu, 1, 4))
    first.add_data_wait((Instant(0), clock.now()))
    first.add_phase("save", _interval(clock, gpu, 1, 4))
    _end(clock, gpu, 0, 10, first)
    second.add_data_wait(_interval(clock, gpu, 11, 12))
    written = _settled([first, _end(clock, gpu, 1, 20, second)])
    assert [record.exposed_data_wait_ns for record in written] == [None, _MS]
    assert written[0].exposed_phases == {"save": 3 * _MS}


def test_a_step_that_the_gpu_has_not_passed_is_written_later_and_in_order(gpu: _Gpu) -> None:
    clock = _Clock()
    written: list[StepRecord] = []
    pending = PendingSteps([], written.append)
    gpu.passes = False
    pending.add(_end(clock, gpu, 0, 0))
    pending.add(_end(clock, gpu, 1, 10))
    assert not written
    gpu.passes = True
    pending.add(_end(clock, gpu, 2, 30))
    assert [(record.index, record.device_ns) for record in written] == [(0, None), (1, 10 * _MS), (2, 20 * _MS)]


def test_in_a_hurry_steps_are_written_without_times_that_have_not_come(gpu: _Gpu) -> None:
    clock = _Clock()
    written: list[StepRecord] = []
    pending = PendingSteps([], written.append)
    gpu.passes = False
    pending.add(_end(clock, gpu, 0, 0))
    pending.add(_end(clock, gpu, 1, 10))
    pending.hurry()
    assert [(record.index, record.device_ns) for record in written] == [(0, None), (1, None)]


def test_a_fault_of_the_gpu_costs_the_times_and_nothing_else(gpu: _Gpu) -> None:
    clock = _Clock()
    records = [_end(clock, gpu, index, 10.0 * index) for index in range(2)]
    gpu.fault = "CUDA error: an illegal memory access was encountered"
    assert [(record.index, record.device_ns) for record in _settled(records)] == [(0, None), (1, None)]


@pytest.mark.parametrize("why", ["no CUDA", "a graph is captured", "the GPU takes no marks"])
def test_without_marks_a_step_is_settled_at_once_and_its_times_are_unknown(gpu: _Gpu, why: str) -> None:
    gpu.is_initialized = why != "no CUDA"
    gpu.is_capturing = why == "a graph is captured"
    gpu.takes_marks = why != "the GPU takes no marks"
    clock, record = _Clock(), StepRecord(0, 0)
    record.add_data_wait(_interval(clock, gpu, 1, 4))
    (record,) = _settled([_end(clock, gpu, 0, 10, record)])
    assert (record.device_ns, record.exposed_data_wait_ns, record.exposed_phases) == (None, None, {})


def test_the_gpu_s_step_time_counts_where_the_host_ran_ahead(gpu: _Gpu) -> None:
    clock, times = _Clock(), UnprofiledStepTime()
    pending = PendingSteps([times], lambda _: None)
    for index in range(4):
        record = _end(clock, gpu, index, 40.0 * index)
        times.steps_ended([record])
        pending.add(record)
    assert times.unprofiled_step_ms() == 40.0


def test_events_are_used_again_on_their_device(gpu: _Gpu) -> None:
    clock = _Clock()
    for device in (0, 1):
        gpu.device = device
        for index in range(20):
            (record,) = _settled([_end(clock, gpu, index, 10.0 * index)])
    assert record.device_ns == 10 * _MS
    assert gpu.num_events == 4  # two of each: the ends of a step


def test_device_times_go_on_after_a_capture(gpu: _Gpu) -> None:
    clock = _Clock()
    records = [_end(clock, gpu, index, 10.0 * index) for index in range(6)]
    records[2].state, records[3].state = "warmup", "active"
    assert [record.device_ns for record in _settled(records)] == [None] + [10 * _MS] * 5


def test_while_a_graph_is_captured_the_gpu_is_asked_nothing(gpu: _Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock()
    written: list[StepRecord] = []
    pending = PendingSteps([], written.append)
    gpu.passes = False
    pending.add(_end(clock, gpu, 0, 0))
    deferred = DeferredScalars({"loss": (0, None)}, [_Event(enable_timing=True)], lambda _: None, None)
    pending.add(_end(clock, gpu, 1, 10, StepRecord(1, 0, deferred=[deferred])))
    gpu.passes, gpu.is_capturing = True, True
    with monkeypatch.context() as capturing:
        capturing.setattr(_Event, "query", lambda _: pytest.fail("a question breaks the capture"))
        pending.add(_end(clock, gpu, 2, 20))
        assert DeviceScalarReader().take({"loss": object()}) is None
    assert not written
    gpu.is_capturing = False
    deferred.slots.clear()
    pending.add(_end(clock, gpu, 3, 30))
    assert [(record.index, record.device_ns) for record in written] == [
        (0, None), (1, 10 * _MS), (2, None), (3, None)
    ]  # fmt: skip


def test_nor_for_the_times_of_steps_that_it_is_known_to_have_passed(gpu: _Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock()
    written: list[StepRecord] = []
    pending = PendingSteps([], written.append)
    gpu.passes = False
    pending.add(*(_end(clock, gpu, index, 10.0 * index) for index in range(5)))
    gpu.passes = True
    assert pending.add(most=2)
    gpu.is_capturing = True
    with monkeypatch.context() as capturing:
        capturing.setattr(_Event, "elapsed_time", lambda *_: pytest.fail("a question breaks the capture"))
        assert not pending.add(most=2)
    gpu.is_capturing = False
    assert [record.index for record in written] == [0, 1]
    assert not pending.add(most=10)
    assert [record.device_ns for record in written] == [None] + [10 * _MS] * 4


def test_a_step_keeps_only_so_many_marks_and_the_time_of_them_all(gpu: _Gpu) -> None:
    clock, record = _Clock(), StepRecord(0, 0)
    for _ in range(MOST_INTERVALS + 5):
        record.add_data_wait(_interval(clock, gpu, 1, 4))
        record.add_phase("save", _interval(clock, gpu, 1, 4))
    wait_ns = sum(ended.ns - began.ns for began, ended in record.data_waits)
    assert (len(record.data_waits), wait_ns) == (MOST_INTERVALS, record.data_wait_ns)
    assert len(record.phase_intervals["save"]) == MOST_INTERVALS
    (written,) = _settled([_end(clock, gpu, 0, 30, record)])
    assert (written.exposed_data_wait_ns, written.exposed_phases) == (None, {})


@given(st.lists(st.integers(0, 1), max_size=40), st.integers(0, 40))
def test_of_a_stream_few_marks_are_asked_and_all_that_is_passed_is_known(streams: list[int], num_passed: int) -> None:
    asked: list[int] = []

    def mark(number: int, stream: int) -> Any:
        def query() -> bool:
            asked.append(number)
            return number < num_passed

        return SimpleNamespace(event=SimpleNamespace(query=query), stream=stream)

    devices = [DeviceStep(None, mark(number, stream)) for number, stream in enumerate(streams)]
    ask_how_far(devices)
    last = streams[::-1]
    num_last = next((n for n, stream in enumerate(last) if stream != last[0]), len(last))
    of_last = range(len(streams) - num_last, len(streams))
    assert [devices[number]._has_passed for number in of_last] == [number < num_passed for number in of_last]
    assert set(asked) <= set(of_last)
    assert len(asked) <= 2 + num_last.bit_length()
    assert [device.has_passed() for device in devices] == [number < num_passed for number in range(len(streams))]
