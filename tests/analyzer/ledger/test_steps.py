"""Begin and end of steps and windows, with every kind of mark and without any."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.analyzer.ledger.steps import host_steps
from stepscope.analyzer.rank import view_rank
from stepscope.core.errors import DataError
from tests.analyzer.build import AUTOGRAD, COPY_STREAM, NS_PER_US, TraceBuilder
from tests.analyzer.readings import analyse, ledger_us, view_of

US = NS_PER_US


def stepped_trace() -> TraceBuilder:
    trace = TraceBuilder()
    for number, begin in ((7, 0), (8, 100), (9, 200)):
        trace.step(number, begin, begin + 100)
        trace.kernel(begin + 30, begin + 60, launch=begin + 10)
    return trace


def test_boundaries_are_the_first_kernels_of_the_host_steps() -> None:
    window = view_of(stepped_trace()).window
    assert window.boundary_ns.tolist() == [30 * US, 130 * US, 230 * US]
    assert window.index.tolist() == [7, 8, 9]
    assert (window.start_ns, window.end_ns) == (30 * US, 260 * US)
    assert window.whole_step_ns.tolist() == [100 * US, 100 * US]


def test_the_host_may_run_ahead_and_device_time_is_not_cut_at_host_times() -> None:
    trace = TraceBuilder()
    for number in range(3):
        trace.step(number, number * 10, number * 10 + 10)
        trace.kernel(100 + number * 50, 150 + number * 50, launch=number * 10 + 5)
    view = view_of(trace)
    assert view.window.boundary_ns.tolist() == [100 * US, 150 * US, 200 * US]
    assert ledger_us(view) == {"compute": 150}


def test_copies_do_not_begin_a_step_and_kernels_of_any_thread_do() -> None:
    trace = stepped_trace()
    trace.copy(112, 118, launch=105, stream=COPY_STREAM)
    trace.kernel(120, 125, launch=108, thread=AUTOGRAD)
    assert view_of(trace).window.boundary_ns.tolist() == [30 * US, 120 * US, 230 * US]


def test_the_window_ends_with_the_last_step_and_not_with_what_an_earlier_one_left_running() -> None:
    trace = stepped_trace()
    trace.copy(150, 900, launch=140, stream=COPY_STREAM)
    assert view_of(trace).window.end_ns == 260 * US


def test_activities_launched_before_the_window_count_as_busy_inside_it() -> None:
    trace = stepped_trace()
    trace.kernel(60, 80, launch=-5)
    assert ledger_us(view_of(trace))["compute"] == 110


def test_a_boundary_that_does_not_increase_is_merged_and_counted() -> None:
    trace = TraceBuilder()
    trace.step(1, 0, 100)
    trace.step(2, 100, 200)
    trace.step(3, 200, 300)
    trace.kernel(160, 170, launch=10)
    trace.kernel(150, 155, launch=110, stream=8)
    trace.kernel(240, 250, launch=210)
    window = view_of(trace).window
    assert window.index.tolist() == [1, 3]
    assert window.num_merged == 1


def test_a_merged_last_step_still_belongs_to_the_window() -> None:
    trace = TraceBuilder()
    trace.step(1, 0, 100)
    trace.step(2, 100, 200)
    trace.kernel(160, 170, launch=10)
    trace.kernel(150, 300, launch=110, stream=8)
    assert view_of(trace).window.end_ns == 300 * US


def test_a_step_without_kernels_has_no_boundary() -> None:
    trace = stepped_trace()
    trace.step(10, 300, 400)
    assert view_of(trace).window.index.tolist() == [7, 8, 9]


def one_step(*, launch: int = 350) -> TraceBuilder:
    """A step of 500 us, with data loading before its first kernel."""
    trace = TraceBuilder()
    trace.step(4, 0, 500)
    trace.annotation("prof.data", 10, 310)
    trace.kernel(360, 400, launch=launch)
    trace.kernel(410, 480, launch=380)
    return trace


def test_a_single_step_begins_on_the_host_where_the_device_was_idle() -> None:
    trace = one_step()
    trace.kernel(-30, -5, launch=-40)
    view = view_of(trace)
    assert view.window.whole_step_ns.tolist() == [480 * US]
    assert ledger_us(view) == {"compute": 110, "data_loading": 300, "host_bound": 50, "device_gap": 20}
    assert (view.window.before_ns, view.window.after_ns) == (0, 20 * US)


def test_a_single_step_begins_where_earlier_work_ends() -> None:
    trace = one_step()
    trace.kernel(-30, 210, launch=-40)
    view = view_of(trace)
    assert view.window.whole_step_ns.tolist() == [270 * US]
    assert ledger_us(view) == {"compute": 110, "data_loading": 100, "host_bound": 40, "device_gap": 20}


@pytest.mark.parametrize(("waited", "begins"), [(500, 1000), (499, 0)])
def test_a_single_step_begins_with_a_kernel_that_waited_long_for_unrecorded_work(waited: int, begins: int) -> None:
    trace = TraceBuilder()
    trace.step(4, 0, 2000)
    trace.kernel(1000, 1900, launch=999 - waited)
    assert view_of(trace).window.start_ns == begins * US


def test_what_a_window_leaves_out_is_told_in_milliseconds() -> None:
    trace = TraceBuilder()
    for number in range(3):
        begin = number * 1000
        trace.step(number, begin, begin + 1000)
        trace.annotation("prof.data", begin, begin + 300)
        trace.kernel(begin + 400, begin + 700, launch=begin + 350)
    trace.kernel(-500, 100, launch=-510)
    quality = analyse(trace).trace_quality
    assert (quality.left_out_before_ms, quality.left_out_after_ms) == (0.3, 0.3)
    whole = analyse(trace, whole_file=True)
    assert (whole.trace_quality.left_out_before_ms, whole.trace_quality.left_out_after_ms) == (0.0, 0.0)
    assert whole.ranks[0].window_ms == 3.51
    assert whole.ranks[0].span_ms == 3.2


def test_without_step_marks_the_optimizers_annotations_end_the_steps() -> None:
    trace = TraceBuilder()
    for begin in (0, 100, 200):
        trace.kernel(begin + 30, begin + 60, launch=begin + 10)
        trace.annotation("Optimizer.step#SGD.step", begin + 70, begin + 75)
        trace.annotation("Optimizer.step#AdamW.step", begin + 80, begin + 90)
        trace.kernel(begin + 85, begin + 95, launch=begin + 82)
    view = view_of(trace)
    assert view.window.boundary_ns.tolist() == [30 * US, 130 * US, 230 * US]
    assert [notice.code for notice in view.notices] == ["steps_from_optimizer"]


def test_without_any_mark_the_trace_is_one_window_and_says_so() -> None:
    trace = TraceBuilder()
    trace.kernel(30, 60, launch=10)
    trace.copy(80, 90, launch=20)
    view = view_of(trace)
    assert (view.window.start_ns, view.window.end_ns) == (10 * US, 90 * US)
    assert [notice.code for notice in view.notices] == ["no_steps"]


def test_steps_in_which_nothing_was_launched_fall_back_to_the_file_and_say_so() -> None:
    trace = TraceBuilder()
    trace.step(1, 100, 200)
    trace.kernel(30, 60, launch=10)
    view = view_of(trace)
    assert view.window.start_ns == 10 * US
    assert [notice.code for notice in view.notices] == ["no_kernels_in_steps"]


def test_the_whole_file_is_first_to_last_event_of_host_and_device() -> None:
    trace = stepped_trace()
    trace.copy(5, 20, launch=2)
    trace.kernel(400, 410, launch=390)
    trace.annotation("checkpoint", 420, 900)
    view = view_of(trace, whole_file=True)
    assert (view.window.start_ns, view.window.end_ns) == (0, 900 * US)
    assert ledger_us(view)["checkpoint"] == 480


@pytest.mark.parametrize("marked", [True, False])
def test_activities_that_take_no_time_are_an_error_in_one_line(marked: bool) -> None:
    trace = TraceBuilder()
    if marked:
        trace.step(1, 0, 100)
    trace.kernel(30, 30, launch=10)
    with pytest.raises(DataError, match="no activity that takes time"):
        view_rank(trace.build(), 0)


def test_a_trace_without_device_and_operators_is_an_error_in_one_line() -> None:
    trace = TraceBuilder()
    trace.runtime("cudaDeviceSynchronize", 0, 5)
    with pytest.raises(DataError, match="neither device activities nor host operators"):
        view_rank(trace.build(), 0)


def test_a_step_that_was_cut_short_is_no_step() -> None:
    trace = TraceBuilder()
    for number in (1, 2, 3):
        trace.step(number, number * 100, number * 100 + 90)
    columns = trace.build()
    told = replace(columns, header=replace(columns.header, whole_steps=(1, 2)))
    assert host_steps(told).index.tolist() == [1, 2]


def test_marks_without_length_are_no_steps() -> None:
    trace = stepped_trace()
    trace.step(10, 300, 300)
    trace.step(4, 50, 50)
    assert host_steps(trace.build()).index.tolist() == [7, 8, 9]


def test_doubled_optimizer_annotations_end_one_step() -> None:
    trace = TraceBuilder()
    for end in (80, 80, 180):
        trace.annotation("Optimizer.step#Adam.step", end - 10, end)
    assert host_steps(trace.build()).end_ns.tolist() == [80 * US, 180 * US]
