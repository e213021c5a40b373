"""Kernel and copy statistics of traces written by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.kernels.rank_kernels import NOT_KNOWN
from stepscope.core.documents.analysis import Analysis, KernelTime
from stepscope.core.text.evidence import unknown_kernels_words
from stepscope.core.vocabulary import Cause, Reason, TimeCategory
from stepscope.trace.columns import NONE, Category, KernelLaunch
from tests.analyzer.build import AUTOGRAD, GEMM, TraceBuilder
from tests.analyzer.readings import analyse, row_of

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
FOREACH = "void multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpListAlphaFunctor<float, 2>>(T)"
FUSED = "void multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>(T)"
SGEMM = "ampere_sgemm_128x64_nn"
SOFTMAX = "void softmax_warp_forward<float, float, float, 10, false, false>(float*)"
PAGEABLE = "Memcpy HtoD (Pageable -> Device)"
PINNED = "Memcpy HtoD (Pinned -> Device)"

FIRST_US = 1000


def one_step(*kernels: tuple[str, int], config: KernelLaunch | None = None) -> TraceBuilder:
    """One step whose kernels (name, microseconds) follow each other at once, all launched ahead."""
    trace = TraceBuilder()
    trace.step(5, 0, 10_000)
    start = FIRST_US
    for number, (name, duration) in enumerate(kernels):
        trace.kernel(start, start + duration, launch=number + 1, name=name, config=config)
        start += duration
    return trace


def found(analysis: Analysis) -> dict[str, float]:
    """Microseconds by finding."""
    return {finding.code: round(finding.ms * 1e3, 3) for finding in analysis.roofline.findings}


def named(kernels: list[KernelTime]) -> dict[str, KernelTime]:
    return {kernel.name: kernel for kernel in kernels}


def test_kernels_are_summed_by_name_and_by_where_they_were_launched() -> None:
    trace = one_step()
    trace.operator("aten::mm", 100, 150, dims="[[8, 4],\n [4, 2]]", types='["float", "float"]')
    trace.kernel(1000, 1100, launch=110)
    trace.kernel(1100, 1200, launch=120)
    trace.operator("nn.Module: Block_1", 200, 300, category=Category.PYTHON_FUNCTION)
    trace.operator("nn.Module: Linear_3", 210, 290, category=Category.PYTHON_FUNCTION)
    trace.operator("aten::add", 220, 250)
    trace.kernel(1200, 1230, launch=230, name=ADD)
    trace.annotation("Optimizer.step#AdamW.step", 300, 400)
    trace.kernel(1230, 1240, launch=310, name=ADD)
    analysis = analyse(trace)
    roofline = analysis.roofline
    assert {k.name: (k.count, k.ms, k.mean_us) for k in roofline.kernels} == {
        GEMM: (2, 0.2, 100.0),
        ADD: (2, pytest.approx(0.04), pytest.approx(20.0)),
    }
    gemm = named(roofline.kernels)[GEMM]
    assert (gemm.operator, gemm.module, gemm.shapes) == ("aten::mm", None, "[[8, 4], [4, 2]]")
    assert {k.name: round(k.ms * 1e3) for k in roofline.by_operator} == {
        "aten::mm": 200,
        "aten::add": 30,
        NOT_KNOWN: 10,
    }
    assert {k.name: round(k.ms * 1e3) for k in roofline.by_module} == {
        NOT_KNOWN: 200,
        "Linear": 30,
        "Optimizer.step#AdamW.step": 10,
    }
    assert next(k.name for k in roofline.by_call) == "aten::mm [[8, 4], [4, 2]]"


def test_backward_counts_where_the_loop_waits_for_it() -> None:
    trace = one_step()
    trace.annotation("backward", 100, 500)
    trace.annotation("FSDP::post_backward (blocks.1)", 300, 400, thread=AUTOGRAD)
    trace.kernel(1000, 1100, launch=200, thread=AUTOGRAD)
    trace.kernel(1100, 1150, launch=350, thread=AUTOGRAD)
    modules = {k.name: round(k.ms * 1e3) for k in analyse(trace).roofline.by_module}
    assert modules == {"backward": 100, "FSDP::post_backward (blocks.1)": 50}


def test_plain_matrix_kernels_are_a_reason_of_compute() -> None:
    analysis = analyse(one_step((SGEMM, 300), (GEMM, 100), (ADD, 100)))
    assert named(analysis.roofline.kernels)[SGEMM].findings == ["no_tensor_cores"]
    assert found(analysis)["no_tensor_cores"] == 300
    row = row_of(analysis, Cause.COMPUTE_BOUND)
    assert row.reasons == [Reason.NO_TENSOR_CORES]
    assert analysis.verdict.reasons == [Reason.NO_TENSOR_CORES]
    assert "no tensor cores" in analysis.verdict.summary
    assert "TF32" in analysis.verdict.actions[0]


@pytest.mark.parametrize("gpu", ["AMD Instinct MI300X", None])
def test_tensor_cores_are_asked_for_where_they_may_be(gpu: str | None) -> None:
    trace = one_step((SGEMM, 300))
    trace.gpu = gpu
    assert ("no_tensor_cores" in found(analyse(trace))) == (gpu is None)


def test_three_element_wise_kernels_in_a_row_are_a_chain() -> None:
    pairs = analyse(one_step((ADD, 50), (ADD, 50), (SOFTMAX, 100), (ADD, 50), (ADD, 50)))
    assert "unfused" not in found(pairs)
    triple = analyse(one_step((ADD, 50), (ADD, 60), (ADD, 70), (SOFTMAX, 100), (ADD, 50)))
    assert found(triple)["unfused"] == 180
    assert row_of(triple, Cause.MEMORY_BOUND).reasons == [Reason.UNFUSED]


def test_kernels_of_other_streams_neither_make_nor_break_a_chain() -> None:
    trace = one_step()
    for number in range(3):
        trace.kernel(1000 + 100 * number, 1100 + 100 * number, launch=number + 1, name=ADD)
        trace.kernel(1000 + 100 * number, 1100 + 100 * number, launch=number + 1, name=SOFTMAX, stream=9)
    assert found(analyse(trace))["unfused"] == 300
    split = one_step()
    for number in range(4):
        split.kernel(1000 + 100 * number, 1100 + 100 * number, launch=number + 1, name=ADD, stream=7 + number % 2)
    assert "unfused" not in found(analyse(split))


def test_passes_of_an_optimizer_are_a_chain_unless_fused() -> None:
    assert found(analyse(one_step(*[(FOREACH, 40)] * 4)))["unfused"] == 160
    assert "unfused" not in found(analyse(one_step(*[(FUSED, 40)] * 4)))


def test_many_tiny_kernels_are_a_reason_of_a_late_host() -> None:
    trace = one_step()
    for number in range(100):
        trace.kernel(1000 + 100 * number, 1005 + 100 * number, launch=998 + 100 * number, name=SOFTMAX)
    trace.step(6, 11_000, 12_000)
    analysis = analyse(trace)
    assert analysis.roofline.tiny_kernels == 1.0
    row = row_of(analysis, Cause.HOST_BOUND)
    assert Reason.TINY_KERNELS in row.reasons
    assert [e.value for e in row.evidence if e.metric == "tiny_share_of_kernels"] == [1.0]


def test_few_tiny_kernels_are_no_finding() -> None:
    analysis = analyse(one_step((GEMM, 100), (SOFTMAX, 9), (GEMM, 100)))
    assert analysis.roofline.tiny_kernels == pytest.approx(1 / 3)
    assert "tiny_kernels" not in found(analysis)


def test_a_grid_smaller_than_the_gpu_is_found() -> None:
    small = KernelLaunch((64, 1, 1), (256, 1, 1), None, None)
    analysis = analyse(one_step((SOFTMAX, 300), config=small))
    kernel = analysis.roofline.kernels[0]
    assert (kernel.limiter, kernel.grid, kernel.block) == ("grid", [64, 1, 1], [256, 1, 1])
    assert (kernel.occupancy, kernel.registers_per_thread) == (None, None)
    assert found(analysis) == {"small_grid": 300}


def test_pageable_copies_are_a_reason_of_copying() -> None:
    trace = one_step((GEMM, 100))
    for start, name in ((1100, PAGEABLE), (1300, PINNED)):
        trace.copy(start, start + 200 if name == PAGEABLE else start + 50, launch=5, name=name)
    trace.kernel(1350, 1400, launch=8)
    analysis = analyse(trace)
    copies = {copy.kind: (copy.count, round(copy.ms * 1e3)) for copy in analysis.roofline.copies}
    assert copies == {"HtoD (Pageable -> Device)": (1, 200), "HtoD (Pinned -> Device)": (1, 50)}
    assert row_of(analysis, Cause.COPY).reasons == [Reason.PAGEABLE_MEMORY]
    assert found(analysis)["pageable_copies"] == 200


def test_a_copys_bandwidth_is_of_those_that_record_their_size() -> None:
    trace = one_step((GEMM, 100))
    for number, num_bytes in enumerate((2_000_000, NONE, 4_000_000)):
        start = 1100 + 100 * number
        trace.kernel(start, start + 100, launch=5, name=PINNED, category=Category.MEMCPY, num_bytes=num_bytes)
    copy = analyse(trace).roofline.copies[0]
    assert (copy.count, copy.bytes) == (3, 6_000_000)
    assert copy.gbs == pytest.approx(30.0)


def test_each_name_has_its_time_in_each_whole_step_as_the_mean_over_ranks() -> None:
    def rank(number: int, *durations: int) -> TraceBuilder:
        trace = TraceBuilder(rank=number, world_size=2)
        for step, duration in enumerate(durations):
            begin = step * 1000
            trace.step(step, begin, begin + 1000)
            trace.kernel(begin + 100, begin + 200, launch=begin, name="first")
            trace.kernel(begin + 300, begin + 300 + duration, launch=begin + 1, name="gemm")
        return trace

    kernels = named(analyse(rank(0, 100, 200, 300), rank(1, 300, 400, 500)).roofline.kernels)
    assert kernels["gemm"].step_ms == pytest.approx([0.2, 0.3])  # the third step is cut by the end of the trace
    assert kernels["first"].step_ms == pytest.approx([0.1, 0.1])


def test_a_trace_of_one_window_has_no_step_times() -> None:
    assert named(analyse(one_step(("gemm", 100))).roofline.kernels)["gemm"].step_ms == []


def test_ranks_add_up() -> None:
    ranks = [one_step((GEMM, 100), (SGEMM, 50)), one_step((SGEMM, 300), (GEMM, 20))]
    for number, trace in enumerate(ranks):
        trace.rank, trace.world_size = number, 2
    roofline = analyse(*ranks).roofline
    assert {k.name: (k.count, round(k.ms * 1e3)) for k in roofline.kernels} == {SGEMM: (2, 350), GEMM: (2, 120)}
    assert [k.name for k in roofline.kernels] == [SGEMM, GEMM]


@given(st.lists(st.tuples(st.sampled_from([GEMM, SGEMM, ADD, SOFTMAX, FUSED]), st.integers(1, 50)), min_size=1))
def test_every_grouping_holds_the_ledgers_compute(kernels: list[tuple[str, int]]) -> None:
    analysis = analyse(one_step(*kernels))
    window_ms = analysis.ranks[0].window_ms
    compute = ("compute_bound", "memory_bound", "latency_bound", "compute_other")
    booked = sum(analysis.ledger[TimeCategory(name)] for name in compute) * window_ms
    roofline = analysis.roofline
    for group in (roofline.kernels, roofline.by_operator, roofline.by_module, roofline.by_call):
        assert sum(kernel.ms for kernel in group) == pytest.approx(booked)
        assert sum(kernel.count for kernel in group) == len(kernels)
    assert all(0 <= finding.fraction <= 1 + 1e-9 for finding in roofline.findings)


def test_kernels_that_nobody_knows_are_counted_with_their_share() -> None:
    offsets = "cask_cudnn::computeOffsetsKernel(cask_cudnn::ComputeOffsetsParams)"
    unknown = analyse(one_step((GEMM, 300), ("my_company_kernel_v2", 100), (offsets, 100))).roofline.unknown
    assert unknown is not None
    assert (unknown.count, unknown.names) == (1, ["my_company_kernel_v2"])
    assert unknown.share == pytest.approx(0.2)
    words = "1 kernel with unknown names: 20.0% of kernel time (my_company_kernel_v2)"
    assert unknown_kernels_words(unknown) == words
