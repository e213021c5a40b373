"""Causes of host work, each on the smallest trace that shows it, with one gap, [100, 300) us."""

from __future__ import annotations

import pytest

from stepscope.core.vocabulary import Reason
from stepscope.trace.columns import Category
from tests.analyzer.build import MAIN, TraceBuilder
from tests.analyzer.ledger.gaps import gap_trace
from tests.analyzer.readings import view_of


def late_us(trace: TraceBuilder) -> dict[str, float]:
    return {reason.value: time / 1000 for reason, time in view_of(trace).host_work.late_ns.items()}


def test_without_any_span_it_is_python() -> None:
    assert late_us(gap_trace()) == {"python": 190}


def test_without_operators_in_the_trace_it_is_not_known() -> None:
    trace = TraceBuilder()
    trace.step(1, 0, 400)
    trace.kernel(10, 100, launch=5)
    trace.kernel(300, 400, launch=290)
    trace.runtime("cudaFuncGetAttributes", 150, 160)
    assert late_us(trace) == {"operators_unknown": 5 + 180, "dispatch": 10}


@pytest.mark.parametrize("name", ["aten::add", "autograd::engine::evaluate_function: AddBackward0"])
def test_inside_an_operator_it_is_dispatch(name: str) -> None:
    trace = gap_trace()
    trace.operator(name, 150, 300)
    assert late_us(trace) == {"dispatch": 140, "python": 50}


@pytest.mark.parametrize("name", ["gc", "gc.collect", "prof.phase: gc", "garbage_collection"])
def test_collecting_garbage_is_told(name: str) -> None:
    trace = gap_trace()
    trace.operator("aten::add", 110, 300)
    trace.annotation(name, 120, 200)
    assert late_us(trace) == {"gc": 80, "dispatch": 100, "python": 10}


@pytest.mark.parametrize("thread", [MAIN, 77])
@pytest.mark.parametrize("name", ["Python GC", "<built-in function collect>"])
def test_the_rows_of_pythons_collector_count_on_any_thread(name: str, thread: int) -> None:
    trace = gap_trace()
    trace.operator(name, 120, 200, thread=thread, category=Category.PYTHON_FUNCTION)
    assert late_us(trace) == {"gc": 80, "python": 110}


def test_the_first_launch_of_a_kernel_that_blocks_loads_its_module() -> None:
    trace = gap_trace(launch=120, launch_end=295)
    trace.kernel(900, 910, launch=500, launch_end=890, name="other")
    trace.kernel(980, 990, launch=920, launch_end=970, name="other")
    assert late_us(trace) == {"python": 20 + 100 + 10, "first_launch": 390, "blocked_launch": 175 + 50}


def test_a_graph_takes_long_to_launch_and_is_not_held_up() -> None:
    trace = gap_trace(launch=290)
    trace.kernel(900, 910, launch=420, launch_end=890, call="cudaGraphLaunch")
    assert late_us(trace) == {"python": 190 + 20, "dispatch": 470}


def test_a_launch_call_that_waits_for_the_drivers_allocator_is_the_allocators() -> None:
    trace = gap_trace(launch=120, launch_end=295)
    trace.runtime("cudaFree", 110, 200)
    assert late_us(trace) == {"python": 10, "allocator": 90, "blocked_launch": 95}


@pytest.mark.parametrize(
    "call", ["cudaMalloc", "cudaFree", "hipMalloc", "cudaHostAlloc", "cuMemMap", "cuMemAddressReserve"]
)
def test_asking_the_driver_for_memory_is_the_allocators(call: str) -> None:
    trace = gap_trace()
    trace.operator("aten::empty", 120, 250)
    trace.runtime(call, 130, 240)
    assert late_us(trace) == {"allocator": 110, "dispatch": 20, "python": 60}


def test_memory_from_the_streams_own_pool_is_no_allocator() -> None:
    trace = gap_trace()
    trace.runtime("cudaMallocAsync", 130, 240)
    assert "allocator" not in late_us(trace)


def test_the_scripts_own_phases_are_told_beside() -> None:
    trace = gap_trace()
    trace.annotation("prof.phase: eval", 120, 280)
    trace.annotation("prof.phase: metrics", 200, 220)
    trace.operator("aten::add", 150, 200)
    assert late_us(trace) == {"dispatch": 50, "python": 140}
    assert view_of(trace).host_work.phases_ns == {"eval": 160_000, "metrics": 20_000}


def test_an_optimizer_that_launches_nothing_runs_on_the_cpu() -> None:
    trace = gap_trace()
    trace.annotation("Optimizer.step#Adam.step", 120, 280)
    trace.operator("aten::add_", 125, 275)
    assert late_us(trace) == {"cpu_optimizer": 160, "python": 30}


def test_an_optimizer_that_launches_kernels_does_not() -> None:
    trace = gap_trace(launch=270)
    trace.annotation("Optimizer.step#Adam.step", 120, 280)
    trace.operator("aten::_fused_adam_", 125, 275)
    assert "cpu_optimizer" not in late_us(trace)


def blocked(operator: str | None) -> TraceBuilder:
    trace = gap_trace()
    trace.kernel(20, 100, launch=15)
    if operator is not None:
        trace.operator(operator, 60, 106, thread=MAIN)
    trace.runtime("cudaStreamSynchronize", 70, 105)
    return trace


@pytest.mark.parametrize(
    ("operator", "reason"),
    [
        ("aten::_local_scalar_dense", Reason.READS_VALUE),
        ("aten::nonzero", Reason.READS_VALUE),
        ("aten::copy_", Reason.BLOCKING_COPY),
        (None, Reason.EXPLICIT_SYNCHRONIZE),
    ],
)
def test_a_blocking_call_is_known_by_the_operator_that_makes_it(operator: str | None, reason: Reason) -> None:
    work = view_of(blocked(operator)).host_work
    assert work.blocked_ns == {reason: 190_000}
    assert work.num_blocking_calls == {reason: 1}


def test_each_batch_is_waited_for_once_however_its_spans_nest() -> None:
    trace = gap_trace()
    trace.annotation("dataloader", 110, 200)
    trace.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 115, 195)
    trace.annotation("prof.data", 500, 510)
    work = view_of(trace).host_work
    assert work.load_waits_ns == (90_000, 10_000)
    assert not work.loads_in_process


def test_a_loader_without_workers_is_seen_by_its_name() -> None:
    trace = gap_trace()
    trace.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 110, 200)
    assert view_of(trace).host_work.loads_in_process
