"""Verdicts on cases that users reported as wrong answers of a profiler tool, each built by hand."""

from __future__ import annotations

import pytest

from stepscope.core.vocabulary import Cause, Reason, TimeCategory
from stepscope.trace.columns import Category
from tests.analyzer.build import TraceBuilder
from tests.analyzer.readings import analyse, notice_codes, row_of


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


def test_where_a_trace_has_stacks_the_function_is_named_instead_of_asking_for_them() -> None:
    for with_stacks in (False, True):
        trace = TraceBuilder(with_stacks=with_stacks)
        for step in range(4):
            trace.step(step, step * 1000, step * 1000 + 1000)
            trace.operator("aten::mm", step * 1000 + 94, step * 1000 + 97)
            trace.kernel(step * 1000 + 100, step * 1000 + 300, launch=step * 1000 + 95)
            if with_stacks:
                frame = "train.py(12): prepare"
                trace.operator(frame, step * 1000 + 310, step * 1000 + 990, category=Category.PYTHON_FUNCTION)
        verdict = analyse(trace).verdict
        assert (verdict.cause, verdict.reasons) == (Cause.HOST_BOUND, [Reason.PYTHON])
        assert ("with_stack=True" in verdict.actions[0]) is not with_stacks
        assert ("train.py:12 prepare" in verdict.actions[0]) is with_stacks


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


def graph_replays(*, recorded: int) -> TraceBuilder:
    """Eight steps of eight graph replays, of which the first ones of each step left kernels; then a value is read."""
    trace = TraceBuilder()
    for step in range(8):
        begin = step * 24_200
        trace.step(step, begin, begin + 24_150)
        for replay in range(8):
            launch, start = begin + 10 + 30 * replay, begin + 60 + 3000 * replay
            if replay < recorded:
                trace.graph([(start + 100 * node, start + 98 + 100 * node) for node in range(30)], launch=launch)
            else:
                trace.lost_launch(launch, call="cudaGraphLaunch")
        trace.operator("aten::item", begin + 400, begin + 24_130)
        trace.copy(begin + 24_070, begin + 24_072, launch=begin + 402, launch_end=begin + 410, stream=7)
        trace.runtime("cudaStreamSynchronize", begin + 412, begin + 24_120)
    return trace


def test_graph_replays_without_kernels_stop_the_verdict() -> None:  # AMD-AGI/Hyperloom#1121
    analysis = analyse(graph_replays(recorded=1))
    verdict = analysis.verdict
    assert verdict.cause is Cause.INSUFFICIENT_EVIDENCE
    assert "56 of 64 graph replays left no kernels" in verdict.summary
    assert "without CUDA graphs" in verdict.actions[0]
    assert analysis.what_if == []
    assert analysis.ledger[TimeCategory.SYNCHRONIZATION] < 0.01
    assert analysis.ledger[TimeCategory.IDLE_OTHER] == pytest.approx(0.87, abs=0.01)
    assert "missing_graph_replays" in notice_codes(analysis)


def test_graph_replays_with_their_kernels_are_computing() -> None:
    analysis = analyse(graph_replays(recorded=8))
    assert analysis.verdict.cause is Cause.COMPUTE_BOUND
    assert analysis.verdict.confidence > 0.9
    assert not [code for code in notice_codes(analysis) if code.startswith("missing")]


def without_device(*, launches: bool, gpu: str | None) -> TraceBuilder:
    trace = TraceBuilder(gpu=gpu)
    for step in range(4):
        begin = step * 1000
        trace.step(step, begin, begin + 1000)
        trace.operator("aten::mm", begin + 10, begin + 950)
        if launches:
            trace.lost_launch(begin + 20)
    return trace


@pytest.mark.parametrize(
    ("launches", "gpu", "what", "remedy"),
    [
        (True, "NVIDIA H100 80GB HBM3", "4 kernel launches left no kernel", "without another profiler"),
        (True, None, "4 kernel launches left no kernel", "without another profiler"),
        (False, "NVIDIA H100 80GB HBM3", "the trace holds no GPU activity", "ProfilerActivity.CUDA"),
    ],
)
def test_a_gpu_job_without_gpu_activities_is_no_cpu_job(  # pytorch/kineto#996
    launches: bool, gpu: str | None, what: str, remedy: str
) -> None:
    analysis = analyse(without_device(launches=launches, gpu=gpu))
    verdict = analysis.verdict
    assert verdict.cause is Cause.INSUFFICIENT_EVIDENCE
    assert what in verdict.summary
    assert remedy in verdict.actions[0]
    assert analysis.ledger[TimeCategory.IDLE_OTHER] == 1.0
    assert (analysis.job.device_kind, analysis.what_if) == ("gpu", [])
    assert "missing_device_activities" in notice_codes(analysis)


@pytest.mark.parametrize(("gpu", "backend"), [(None, "nccl"), ("NVIDIA H100 80GB HBM3", "gloo")])
def test_without_gpu_and_launches_it_is_a_cpu_job(gpu: str | None, backend: str) -> None:
    trace = without_device(launches=False, gpu=gpu)
    trace.backend = backend
    analysis = analyse(trace)
    assert analysis.job.device_kind == "cpu"
    assert analysis.verdict.cause is Cause.COMPUTE_BOUND


@pytest.mark.parametrize(("unlinked", "is_enough"), [(1, True), (6, False)])
def test_idle_time_before_unlinked_kernels_is_charged_to_nothing(unlinked: int, is_enough: bool) -> None:
    """Of ten kernels a step, each after 100 us of a late host, some lack their launch."""
    trace = TraceBuilder()
    for step in range(4):
        trace.step(step, step * 2000, step * 2000 + 2000)
        for kernel in range(10):
            begin = step * 2000 + kernel * 200
            trace.kernel(begin + 100, begin + 200, launch=None if 2 <= kernel < 2 + unlinked else begin + 98)
    analysis = analyse(trace)
    assert (analysis.verdict.cause is Cause.HOST_BOUND) is is_enough
    assert ("not linked to a launch" in analysis.verdict.summary) is not is_enough
    assert bool(analysis.what_if) is is_enough
    assert row_of(analysis, Cause.HOST_BOUND).fraction == pytest.approx((10 - unlinked) * 0.05, abs=0.02)


def test_a_cause_smaller_than_what_is_unknown_is_not_named() -> None:
    trace = TraceBuilder()
    for step in range(4):
        begin = step * 1000
        trace.step(step, begin, begin + 1000)
        trace.kernel(begin + 10, begin + 500, launch=begin + 5)
        trace.annotation("prof.data", begin + 520, begin + 660)
        trace.kernel(begin + 670, begin + 750, launch=begin + 665)
        trace.lost_launch(begin + 755)
    analysis = analyse(trace)
    assert analysis.verdict.cause is Cause.INSUFFICIENT_EVIDENCE
    assert [other.cause for other in analysis.verdict.secondary] == [Cause.DATA_LOADING]


@pytest.mark.parametrize(("gap_us", "is_told"), [(50, False), (2400, True)])
def test_queued_work_that_does_not_start_for_long_is_a_guess_and_no_matter_of_cuda_graphs(
    gap_us: int, is_told: bool
) -> None:
    trace = TraceBuilder()
    now = 0
    for step in range(4):
        trace.step(step, step * 100, step * 100 + 100)
        for kernel in range(5):
            trace.kernel(now, now + gap_us, launch=step * 100 + kernel * 10 + 1 if now else -5)
            now += 2 * gap_us
    verdict = analyse(trace).verdict
    assert verdict.cause is Cause.DEVICE_GAP
    assert (Reason.NOT_STARTED in verdict.reasons) is is_told
    assert (verdict.confidence <= 0.5) is is_told
    assert any("CUDA graphs" in action for action in verdict.actions) is not is_told
