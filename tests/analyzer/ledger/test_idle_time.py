"""Causes of device idle time, each on the smallest trace that shows it.

Each trace has one gap, [100, 300) us between two kernels; the second is launched at 290 us unless a test says else.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from stepscope.analyzer.ledger.activities import device_activities
from stepscope.analyzer.ledger.host_spans import host_annotations
from stepscope.analyzer.ledger.idle_time import observe_host
from stepscope.analyzer.ledger.steps import host_steps
from stepscope.core.vocabulary import TimeCategory
from stepscope.trace.columns import Category, TraceColumns
from tests.analyzer.build import AUTOGRAD, MAIN, TraceBuilder
from tests.analyzer.ledger.gaps import gap_trace
from tests.analyzer.readings import attributed_us, ledger_us, view_of


def idle_us(trace: TraceBuilder) -> dict[str, float]:
    return {name: time for name, time in ledger_us(view_of(trace)).items() if name not in ("compute", "copy")}


def test_before_the_launch_the_host_was_slow_and_after_it_the_device() -> None:
    assert idle_us(gap_trace(launch=250)) == {"host_bound": 150, "device_gap": 50}


def test_work_that_was_queued_before_the_gap_is_a_device_gap() -> None:
    assert idle_us(gap_trace(launch=20)) == {"device_gap": 200}


@pytest.mark.parametrize(
    ("launch_end", "idle"),
    [
        (169, {"host_bound": 50, "device_gap": 150}),
        (170, {"host_bound": 70, "device_gap": 130}),
        (295, {"host_bound": 195, "device_gap": 5}),
        (310, {"host_bound": 200}),
    ],
)
def test_a_launch_call_of_20_us_blocks_so_that_its_kernel_is_queued_when_it_returns(
    launch_end: int, idle: dict[str, float]
) -> None:
    trace = gap_trace(launch=150, launch_end=launch_end)
    assert idle_us(trace) == idle


def test_a_launch_call_that_blocks_is_not_the_synchronization_before_it() -> None:
    trace = gap_trace(launch=110, launch_end=295)
    trace.runtime("cudaStreamSynchronize", 60, 105)
    assert idle_us(trace) == {"synchronization": 10, "host_bound": 185, "device_gap": 5}


def test_an_annotation_around_a_launch_call_that_blocks_names_it() -> None:
    trace = gap_trace(launch=110, launch_end=295)
    trace.annotation("prof.data", 105, 200)
    assert idle_us(trace) == {"host_bound": 100, "data_loading": 95, "device_gap": 5}


def test_the_call_of_a_blocking_copy_does_not_show_when_the_copy_was_queued() -> None:
    trace = gap_trace()
    trace.copy(103, 250, launch=60, launch_end=252)  # queued while the device computed: its latency is 3 us
    assert idle_us(trace) == {"synchronization": 40, "device_gap": 3 + 10}


def test_a_blocking_copy_that_the_host_prepares_first_is_host_time() -> None:
    trace = gap_trace()
    trace.copy(180, 250, launch=110, launch_end=252)
    assert idle_us(trace) == {"host_bound": 10 + 70, "synchronization": 40, "device_gap": 10}


@pytest.mark.parametrize("name", ["cudaFree", "hipFree", "cudaMalloc", "cuMemUnmap", "cudaHostAlloc"])
def test_memory_management_after_a_blocking_call_is_not_the_blocking_calls(name: str) -> None:
    trace = gap_trace()
    trace.runtime("cudaEventSynchronize", 60, 105)
    trace.runtime(name, 108, 200)
    assert idle_us(trace) == {"synchronization": 98, "host_bound": 92, "device_gap": 10}


@pytest.mark.parametrize("thread", [MAIN, 77])
def test_pythons_collector_after_a_blocking_call_is_not_the_blocking_calls(thread: int) -> None:
    trace = gap_trace()
    trace.runtime("cudaEventSynchronize", 60, 105)
    trace.operator("Python GC", 108, 200, thread=thread, category=Category.PYTHON_FUNCTION)
    assert idle_us(trace) == {"synchronization": 98, "host_bound": 92, "device_gap": 10}


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "data_loading"),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "data_loading"),
        ("prof.data", "data_loading"),
        ("dataloader", "data_loading"),
        ("checkpoint", "checkpoint"),
        ("save_checkpoint", "checkpoint"),
        ("torch.save", "checkpoint"),
        ("profiler stop", "profiler"),
    ],
)
def test_an_open_annotation_of_the_launching_thread_names_the_idle_time(name: str, category: str) -> None:
    trace = gap_trace()
    trace.annotation(name, 120, 200)
    assert idle_us(trace) == {category: 80, "host_bound": 110, "device_gap": 10}


def test_the_training_loops_annotations_count_for_kernels_that_autograd_launches() -> None:
    trace = gap_trace(thread=AUTOGRAD)
    trace.annotation("checkpoint", 120, 200)
    assert idle_us(trace)["checkpoint"] == 80


def test_another_threads_annotations_do_not_count() -> None:
    trace = gap_trace()
    trace.annotation("checkpoint", 120, 200, thread=AUTOGRAD)
    assert "checkpoint" not in idle_us(trace)


def test_profiler_goes_before_checkpoint_and_checkpoint_before_data_loading() -> None:
    trace = gap_trace()
    trace.annotation("prof.data", 110, 210)
    trace.annotation("checkpoint", 110, 160)
    trace.annotation("profiler start", 110, 130)
    assert idle_us(trace) == {"profiler": 20, "checkpoint": 30, "data_loading": 50, "host_bound": 90, "device_gap": 10}


def test_the_profilers_own_overhead_counts_wherever_it_is_recorded() -> None:
    trace = gap_trace()
    trace.overhead("Activity Buffer Request", 120, 150)
    assert idle_us(trace)["profiler"] == 30


@pytest.mark.parametrize("name", ["Command Buffer Full", "Lazy Function Loading", "Runtime Triggered Module Loading"])
def test_back_pressure_and_kernel_loading_are_not_the_profilers(name: str) -> None:
    trace = gap_trace()
    trace.overhead(name, 120, 150)
    assert "profiler" not in idle_us(trace)


@pytest.mark.parametrize("call", ["cudaDeviceSynchronize", "cudaStreamSynchronize", "hipEventSynchronize"])
def test_a_gap_that_opens_inside_a_synchronizing_call_is_synchronization(call: str) -> None:
    trace = gap_trace()
    trace.runtime(call, 60, 105)
    assert idle_us(trace) == {"synchronization": 190, "device_gap": 10}


@pytest.mark.parametrize(("returned", "is_synchronization"), [(80, True), (79, False)])
def test_a_gap_counts_as_synchronization_until_20_us_after_the_call(returned: int, is_synchronization: bool) -> None:
    trace = gap_trace()
    trace.runtime("cudaStreamSynchronize", 60, returned)
    assert ("synchronization" in idle_us(trace)) is is_synchronization


def test_a_call_that_begins_inside_the_gap_did_not_wait_for_the_device() -> None:
    trace = gap_trace()
    trace.runtime("cudaStreamSynchronize", 101, 110)
    assert "synchronization" not in idle_us(trace)


def test_loading_data_right_after_a_synchronizing_call_is_data_loading() -> None:
    trace = gap_trace()
    trace.runtime("cudaStreamSynchronize", 60, 105)
    trace.annotation("prof.data", 110, 200)
    assert idle_us(trace) == {"data_loading": 90, "synchronization": 100, "device_gap": 10}


@pytest.mark.parametrize(
    ("name", "returns", "blocks"),
    [
        ("Memcpy DtoH (Device -> Pageable)", 106, True),
        ("Memcpy DtoH (Device -> Pageable)", 101, False),
        ("Memcpy HtoD (Pinned -> Device)", 106, False),
        ("Memcpy DtoD (Device -> Device)", 106, False),
        ("Memset (Device)", 106, False),
    ],
)
def test_a_copy_blocks_when_its_call_returns_after_it_unless_it_is_asynchronous_by_nature(
    name: str, returns: int, blocks: bool
) -> None:
    trace = gap_trace()
    trace.copy(100, 105, launch=60, launch_end=returns, name=name)
    assert ("synchronization" in idle_us(trace)) is blocks


def test_a_device_to_device_copy_by_a_blocking_call_blocks() -> None:
    trace = gap_trace()
    name = "Memcpy DtoD (Device -> Device)"
    category = Category.MEMCPY
    trace.kernel(100, 105, launch=60, launch_end=106, name=name, call="hipMemcpyWithStream", category=category)
    assert "synchronization" in idle_us(trace)


def test_a_copy_inside_a_checkpoint_or_loader_is_booked_as_copy_and_charged_to_it() -> None:
    trace = gap_trace()
    trace.annotation("checkpoint", 105, 130)
    trace.annotation("prof.data", 140, 160)
    trace.copy(110, 150, launch=108)
    trace.copy(160, 190, launch=155)
    trace.copy(200, 210, launch=195)
    view = view_of(trace)
    assert attributed_us(view, TimeCategory.COPY) == {"checkpoint": 40, "data_loading": 30, "copy": 10}


def test_without_any_runtime_call_idle_time_is_other() -> None:
    trace = TraceBuilder()
    trace.kernel(50, 100)
    trace.kernel(300, 400)
    assert idle_us(trace) == {"idle_other": 200}


def test_a_kernel_whose_launch_is_lost_leaves_its_gap_unexplained() -> None:
    trace = gap_trace(launch=None)
    trace.kernel(400, 410, launch=200)
    assert idle_us(trace) == {"idle_other": 200}


def test_kernels_queued_before_recording_began_have_device_gaps() -> None:
    trace = TraceBuilder()
    trace.kernel(10, 20)
    trace.kernel(30, 40)
    trace.kernel(90, 100, launch=80)
    assert idle_us(trace) == {"device_gap": 10 + 10, "host_bound": 40}


def test_gaps_inside_one_graph_launch_are_the_devices() -> None:
    trace = TraceBuilder()
    trace.step(1, 8, 100)
    trace.graph([(20, 30), (35, 40), (50, 60)], launch=10)
    trace.graph([(90, 95)], launch=80)
    view = view_of(trace)
    assert idle_us(trace) == {"device_gap": 10 + 15 + 10, "host_bound": 2 + 20}
    assert view.facts.num_graph_kernels == 4


def exposed_trace(*, launch: int, launch_end: int | None = None) -> TraceBuilder:
    trace = TraceBuilder()
    trace.step(5, 0, 1000)
    trace.kernel(0, 50)
    trace.kernel(50, 100, launch=10)
    trace.collective("allreduce", 100, 300, launch=20, group=None)
    trace.kernel(300, 400, launch=launch, launch_end=launch_end)
    return trace


def test_communication_is_not_blocking_while_a_launch_call_blocks() -> None:
    unsplit = attributed_us(view_of(exposed_trace(launch=150, launch_end=280)), TimeCategory.COMMUNICATION_UNSPLIT)
    assert unsplit == {"host_bound": 180, "communication": 20}


def test_communication_is_not_blocking_while_the_next_kernel_is_not_even_launched() -> None:
    assert attributed_us(view_of(exposed_trace(launch=250)), TimeCategory.COMMUNICATION_UNSPLIT) == {
        "host_bound": 150,
        "communication": 50,
    }


def test_communication_blocks_what_was_launched_before_it() -> None:
    unsplit = attributed_us(view_of(exposed_trace(launch=30)), TimeCategory.COMMUNICATION_UNSPLIT)
    assert unsplit == {"communication": 200}


def test_a_host_that_is_blocked_meanwhile_is_not_late() -> None:
    trace = exposed_trace(launch=250)
    trace.runtime("cudaStreamSynchronize", 90, 240)
    unsplit = attributed_us(view_of(trace), TimeCategory.COMMUNICATION_UNSPLIT)
    assert unsplit == {"host_bound": 10, "communication": 190}


def test_a_late_host_that_loads_data_is_charged_as_data_loading() -> None:
    trace = exposed_trace(launch=250)
    trace.annotation("prof.data", 100, 200)
    unsplit = attributed_us(view_of(trace), TimeCategory.COMMUNICATION_UNSPLIT)
    assert unsplit == {"data_loading": 100, "host_bound": 50, "communication": 50}


@pytest.mark.parametrize("threads", [1, 6])
def test_annotations_are_looked_up_once_however_many_threads_launch(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = gap_trace()
    trace.annotation("checkpoint", 120, 220)
    for thread in range(threads):
        trace.annotation("checkpoint", 230 + thread, 232 + thread, thread=50 + thread)
        trace.kernel(500 + thread, 501 + thread, launch=400 + thread, thread=50 + thread)
    columns, lookups = trace.build(), []
    steps, activities = host_steps(columns), device_activities(columns)
    rows_named = TraceColumns.rows_named

    def counted(self: TraceColumns, *arguments: Any) -> Any:
        lookups.append(arguments)
        return rows_named(self, *arguments)

    monkeypatch.setattr(TraceColumns, "rows_named", counted)
    spans = observe_host(columns, steps, activities).spans_of_lane
    num_lookups = len(lookups)
    assert num_lookups == 7  # profiler, its overhead, checkpoint, loader, blocking calls, collections, allocations
    assert len(spans) == threads + 1
    for lane, own in spans.items():
        expected = host_annotations(columns, [lane, steps.main_lane])
        assert own.annotated.keys() == expected.keys()
        for category, spans_of_both in expected.items():
            np.testing.assert_equal(asdict(own.annotated[category]), asdict(spans_of_both))
