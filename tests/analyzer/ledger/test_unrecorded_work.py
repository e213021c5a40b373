"""Time in which the device may run what the trace does not hold, each kind on the smallest trace that shows it."""

from __future__ import annotations

import pytest

from stepscope.analyzer.ledger.unrecorded_work import Missing
from tests.analyzer.build import COPY_STREAM, TraceBuilder
from tests.analyzer.ledger.gaps import gap_trace
from tests.analyzer.readings import ledger_us, view_of


def unknown_us(trace: TraceBuilder) -> dict[Missing, float]:
    """Unknown time by what is missing; it is all idle time without a cause."""
    view = view_of(trace)
    found = {kind: nanoseconds / 1000 for kind, nanoseconds in view.facts.unknown_ns.items()}
    assert sum(found.values()) == ledger_us(view).get("idle_other", 0)
    return found


LAUNCHES = (
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cudaLaunchCooperativeKernel",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "hipLaunchKernel",
    "hipModuleLaunchKernel",
    "hipExtModuleLaunchKernel",
    "urEnqueueKernelLaunch",
)


@pytest.mark.parametrize("call", LAUNCHES)
def test_after_a_launch_without_kernel_the_device_may_work_until_the_next_kernel_starts(call: str) -> None:
    trace = gap_trace()
    trace.lost_launch(120, call=call)
    assert unknown_us(trace) == {Missing.LAUNCHES: 180}
    assert ledger_us(view_of(trace))["host_bound"] == 20


def test_a_graph_replay_without_kernels_is_told_apart() -> None:
    trace = gap_trace()
    trace.lost_launch(120, call="cudaGraphLaunch")
    facts = view_of(trace).facts
    assert unknown_us(trace) == {Missing.GRAPH_REPLAYS: 180}
    assert (facts.num_launches, facts.num_lost, facts.num_graph_launches, facts.num_lost_graphs) == (2, 0, 1, 1)


@pytest.mark.parametrize("call", ["cudaStreamSynchronize", "hipDeviceSynchronize"])
def test_when_a_synchronization_returns_what_was_launched_before_it_is_done(call: str) -> None:
    trace = gap_trace()
    trace.lost_launch(120)
    trace.runtime(call, 125, 200)
    assert unknown_us(trace) == {Missing.LAUNCHES: 80}


def test_an_event_may_have_been_recorded_before_the_lost_launch() -> None:
    trace = gap_trace()
    trace.lost_launch(120)
    trace.runtime("cudaEventSynchronize", 125, 130)
    assert unknown_us(trace) == {Missing.LAUNCHES: 180}


def test_a_copy_on_another_stream_does_not_show_that_a_lost_kernel_is_done() -> None:
    trace = gap_trace()
    trace.lost_launch(120)
    trace.copy(140, 150, launch=130, name="Memcpy HtoD (Pinned -> Device)", stream=COPY_STREAM)
    assert unknown_us(trace) == {Missing.LAUNCHES: 170}


@pytest.mark.parametrize("call", ["cudaMemsetAsync", "cudaLaunchHostFunc", "cudaFuncGetAttributes"])
def test_calls_that_launch_no_kernels_leave_nothing_unknown(call: str) -> None:
    trace = gap_trace()
    trace.lost_launch(120, call=call)
    assert unknown_us(trace) == {}


def test_kernels_that_a_graph_captures_do_not_run() -> None:
    trace = gap_trace()
    trace.runtime("cudaStreamBeginCapture", 110, 112)
    trace.lost_launch(120)
    trace.runtime("cudaStreamEndCapture", 190, 195)
    view = view_of(trace)
    assert unknown_us(trace) == {}
    assert view.facts.lost_launches == 0
    assert {reason.value: time for reason, time in view.host_work.late_ns.items()} == {
        "graph_capture": 85_000,
        "python": 105_000,
    }


def silent(*, until: int) -> TraceBuilder:
    """A step of 10 ms whose host waits for the device until a time; the only kernel ends after 1 ms."""
    trace = TraceBuilder()
    trace.step(1, 0, 10_000)
    trace.kernel(10, 1000, launch=5)
    trace.runtime("cudaStreamSynchronize", 20, until)
    trace.kernel(9000, 9500, launch=8995)
    return trace


def test_a_synchronization_that_outlasts_all_recorded_work_waits_for_unrecorded_work() -> None:
    assert unknown_us(silent(until=5000)) == {Missing.WAITS: 4000}
    assert ledger_us(view_of(silent(until=5000)))["synchronization"] == 3995
    assert unknown_us(silent(until=1900)) == {}


def test_queued_work_that_pauses_inside_a_synchronization_is_recorded() -> None:
    trace = silent(until=5000)
    trace.kernel(4000, 4990, launch=15)
    assert unknown_us(trace) == {}


def test_the_first_kernel_of_a_stream_may_wait_behind_earlier_work() -> None:
    trace = TraceBuilder()
    trace.step(1, 0, 1000)
    trace.step(2, 1000, 2000)
    trace.kernel(10, 20, launch=5, stream=9)
    trace.kernel(900, 950, launch=12)
    trace.kernel(1500, 1600, launch=1100)
    assert unknown_us(trace) == {Missing.EARLIER_WORK: 880}


def test_a_trace_without_steps_begins_when_earlier_work_is_done() -> None:
    trace = TraceBuilder()
    trace.kernel(10, 20, launch=5, stream=9)
    trace.kernel(900, 950, launch=12)
    window = view_of(trace).window
    assert (window.start_ns, window.end_ns, window.before_ns) == (900_000, 950_000, 895_000)


def test_launches_and_kernels_without_common_ids_are_unlinked_and_not_lost() -> None:
    trace = gap_trace()
    for number in range(3):
        trace.lost_launch(400 + 100 * number)
        trace.kernel(450 + 100 * number, 460 + 100 * number)
    trace.kernel(900, 910, launch=890)
    assert unknown_us(trace) == {Missing.LINKS: 50 + 90 + 90}


def test_idle_time_before_unlinked_kernels_has_no_cause() -> None:
    trace = gap_trace(launch=None)
    trace.kernel(400, 410, launch=200)
    assert unknown_us(trace) == {Missing.LINKS: 200}
