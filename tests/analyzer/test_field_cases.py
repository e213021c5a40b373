"""Verdicts on cases that users reported as wrong answers of a profiler tool, each built by hand."""

from __future__ import annotations

import pytest

from stepscope.core.vocabulary import Cause, Reason, TimeCategory
from stepscope.trace.columns import Category
from tests.analyzer.build import TraceBuilder
from tests.analyzer.readings import analyse, row_of


@pytest.mark.parametrize("name", ["Python GC", "<built-in function collect>"])
def test_pythons_garbage_collections_are_named(name: str) -> None:  # pytorch/pytorch#161209
    trace = TraceBuilder(with_stacks=True)
    begin = 0
    for step in range(6):
        length = 78_400 if step in (2, 5) else 18_400
        trace.step(10 + step, begin, begin + length)
        for kernel in range(40):
            pause = 60_000 if length > 18_400 and kernel >= 20 else 0
            start = begin + 460 * kernel + pause
            trace.operator("aten::mm", start + 2, start + 12)
            trace.kernel(start + 15, start + 455, launch=start + 5)
        if length > 18_400:
            trace.operator(name, begin + 9_200, begin + 69_200, category=Category.PYTHON_FUNCTION)
        begin += length
    verdict = analyse(trace).verdict
    assert (verdict.cause, verdict.reasons) == (Cause.HOST_BOUND, [Reason.GC])
    assert "gc.freeze()" in verdict.actions[0]
    assert not any("with_stack" in action for action in verdict.actions)


def test_stacks_are_not_asked_for_where_the_trace_has_them() -> None:
    for with_stacks in (False, True):
        trace = TraceBuilder(with_stacks=with_stacks)
        for step in range(4):
            trace.step(step, step * 1000, step * 1000 + 1000)
            trace.kernel(step * 1000 + 100, step * 1000 + 300, launch=step * 1000 + 95)
        verdict = analyse(trace).verdict
        assert (verdict.cause, verdict.reasons) == (Cause.HOST_BOUND, [Reason.PYTHON])
        assert ("with_stack=True" in verdict.actions[0]) is not with_stacks


@pytest.mark.parametrize("vendor", ["cuda", "hip"])
@pytest.mark.parametrize("waits_by", ["EventSynchronize", "Free"])
def test_allocation_retries_are_the_allocators(vendor: str, waits_by: str) -> None:  # ROCm/pytorch#3501
    trace = TraceBuilder()
    for step in range(4):
        begin = step * 50_000
        trace.step(20 + step, begin, begin + 50_000)
        trace.kernel(begin + 100, begin + 27_400, launch=begin + 50)
        trace.runtime(f"{vendor}Malloc", begin + 350, begin + 410)
        trace.runtime(f"{vendor}{waits_by}", begin + 416, begin + 27_456)
        for block in range(20):
            trace.runtime(f"{vendor}Free", begin + 27_458 + 260 * block, begin + 27_708 + 260 * block)
        trace.runtime(f"{vendor}Malloc", begin + 32_658, begin + 36_158)
        trace.kernel(begin + 36_200, begin + 50_050, launch=begin + 36_176)
    analysis = analyse(trace)
    verdict = analysis.verdict
    assert (verdict.cause, verdict.reasons) == (Cause.HOST_BOUND, [Reason.ALLOCATOR])
    assert analysis.ledger[TimeCategory.SYNCHRONIZATION] < 0.01
    assert not any("synchronize" in action for action in verdict.actions)


def test_a_launch_call_that_blocks_is_not_a_launch_gap() -> None:
    trace = TraceBuilder()
    trace.operator("aten::mm", 0, 20)
    trace.kernel(12, 1012, launch=5, launch_end=10)
    trace.operator("aten::cudnn_convolution", 1020, 101_030)
    trace.kernel(101_026, 102_026, launch=1025, launch_end=101_025, name="cudnn_conv")
    analysis = analyse(trace)
    verdict = analysis.verdict
    assert (verdict.cause, verdict.reasons) == (Cause.HOST_BOUND, [Reason.FIRST_LAUNCH])
    assert analysis.ledger[TimeCategory.DEVICE_GAP] < 0.001
    assert not any("CUDA graphs" in action for action in verdict.actions)


@pytest.mark.parametrize("with_earlier_work", [False, True])
def test_data_loading_before_the_first_kernel_of_the_only_step_counts(with_earlier_work: bool) -> None:
    trace = TraceBuilder()
    if with_earlier_work:  # of a step before, with its own data loading, which is no part of this one
        trace.annotation("prof.data", -90_000, -40_000)
        trace.kernel(-30_000, -20_000, launch=-30_005)
    trace.step(1, 1000, 311_000)
    trace.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1100, 300_100)
    for kernel in range(10):
        begin = 300_500 + kernel * 1000
        trace.operator("aten::mm", begin, begin + 20)
        trace.kernel(begin + 12, begin + 1002, launch=begin + 5)
    analysis = analyse(trace)
    assert analysis.verdict.cause is Cause.DATA_LOADING
    assert analysis.job.step_ms == pytest.approx(309.5, abs=0.01)
    assert row_of(analysis, Cause.DATA_LOADING).ms_per_step == pytest.approx(299.0)
    (fix,) = analysis.what_if
    assert fix.replay_error == pytest.approx(0.0, abs=0.001)
    assert fix.step_ms == pytest.approx(10.5, abs=0.01)
