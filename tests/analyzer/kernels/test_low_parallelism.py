"""Kernels that leave most of the GPU empty: short ones and those of few blocks, each with its words and remedy."""

from __future__ import annotations

import pytest

from stepscope.core.documents.analysis import Analysis
from stepscope.core.vocabulary import Cause, Reason, TimeCategory
from stepscope.trace.columns import KernelLaunch
from tests.analyzer.build import TraceBuilder
from tests.analyzer.readings import analyse

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
STATISTICS = "void at::native::batch_norm_collect_statistics_kernel<at::native::InvStd, float, float, int>(T)"
CUDNN = "void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>(cudnn::bn_fw_tr_1C11_args)"
LAST = "void at::native::batch_norm_collect_statistics_channels_last_kernel<at::native::InvStd, float, float, 4>(T)"
ATTENTION = "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>(Flash_fwd_params)"
SCAN = "void at::native::tensor_kernel_scan_outer_dim<float, unsigned int, std::plus<float>>(T)"

BATCH_NORM = ("aten::cudnn_batch_norm", "[[64, 64, 56, 56], [64], [64]]", '["float", "float", "float"]')
PRODUCT = ("aten::mm", "[[64, 8192], [8192, 64]]", '["c10::BFloat16", "c10::BFloat16"]')
ADD = ("aten::add", "[[1024], [1024]]", '["float", "float"]')
CUMSUM = ("aten::cumsum", "[[1024, 64]]", '["float"]')


def job(name: str, operator: tuple[str, str, str], *, duration: int, blocks: int, steps: int = 3) -> Analysis:
    """Each step of 2 ms computes on all multiprocessors for a half and in such kernels for the other."""
    trace = TraceBuilder()
    for step in range(steps):
        begin = step * 2000
        trace.step(step, begin, begin + 2000)
        product = (PRODUCT[0], "[[8192, 4096], [4096, 4096]]", PRODUCT[2])
        add(trace, GEMM, product, start=begin + 10, end=begin + 1000, launch=begin + 2, blocks=1024)
        for number in range(1000 // duration):
            start = begin + 1000 + number * duration
            launch = begin + 20 + number * 5
            add(trace, name, operator, start=start, end=start + duration, launch=launch, blocks=blocks)
    return analyse(trace)


def add(
    trace: TraceBuilder, name: str, operator: tuple[str, str, str], *, start: int, end: int, launch: int, blocks: int
) -> None:
    kind, dims, types = operator
    trace.operator(kind, launch - 1, launch + 3, dims=dims, types=types)
    config = KernelLaunch((blocks, 1, 1), (256, 1, 1), None, None)
    trace.kernel(start, end, launch=launch, name=name, config=config)


@pytest.mark.parametrize(
    ("name", "operator", "remedy"),
    [
        (STATISTICS, BATCH_NORM, "channels_last"),
        (CUDNN, BATCH_NORM, "channels_last"),
        (LAST, BATCH_NORM, "independent work beside"),
        (GEMM, PRODUCT, "split-K"),
        (SCAN, CUMSUM, "independent work beside"),
    ],
)
def test_long_kernels_of_few_blocks_have_a_reason_and_a_remedy_of_their_own(
    name: str, operator: tuple[str, str, str], remedy: str
) -> None:
    analysis = job(name, operator, duration=250, blocks=64)
    verdict = analysis.verdict
    assert (verdict.cause, verdict.reasons) == (Cause.LATENCY_BOUND, [Reason.FEW_BLOCKS])
    assert verdict.summary.startswith("no bottleneck: 5")
    assert "bound by kernels that leave most of the GPU empty" in verdict.summary
    assert remedy in verdict.actions[0]
    evidence = {item.metric: item.value for item in verdict.evidence}
    assert evidence["few_blocks_share"] == 1.0
    assert (evidence["few_blocks_grid"], evidence["few_blocks_duration"]) == (64, 250)
    said = " ".join([verdict.summary, *verdict.actions, *(finding.advice for finding in analysis.roofline.findings)])
    assert "small" not in said
    assert "batches" not in said
    assert "batch size" not in said


def test_kernels_under_20_us_are_short() -> None:
    verdict = job("void add_kernel(float*)", ADD, duration=10, blocks=2000).verdict
    assert (verdict.cause, verdict.reasons) == (Cause.LATENCY_BOUND, [Reason.SHORT_KERNELS])
    assert verdict.summary.startswith("no bottleneck: 5")
    assert "fuse" in verdict.actions[0]


@pytest.mark.parametrize(("blocks", "is_low"), [(131, True), (132, False)])
def test_as_many_blocks_as_multiprocessors_fill_the_gpu(blocks: int, is_low: bool) -> None:
    ledger = job(STATISTICS, BATCH_NORM, duration=250, blocks=blocks).ledger
    assert (ledger[TimeCategory.LATENCY_BOUND] > 0.4) is is_low
