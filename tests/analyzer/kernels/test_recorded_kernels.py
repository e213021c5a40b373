"""Kernel statistics of recorded traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.core.documents.analysis import KernelTime, Roofline
from stepscope.core.vocabulary import Cause, Reason
from stepscope.workflow.analyze import analyze

pytestmark = pytest.mark.shared


def roofline_of(path: Path) -> Roofline:
    return analyze([str(path)], keep=False).analysis.roofline


def found(roofline: Roofline) -> dict[str, float]:
    return {finding.code: finding.fraction for finding in roofline.findings}


def first(kernels: list[KernelTime], words: str) -> KernelTime:
    return next(kernel for kernel in kernels if words in kernel.name)


def test_hopper_matmuls_hold_one_block_and_are_not_faulted(shared_traces: Path) -> None:
    """h100x2 ddp, bfloat16: 168 registers in blocks of 384 threads, 213 KB of shared memory."""
    roofline = roofline_of(shared_traces / "h100x2" / "ddp" / "ddp.rank0.json.gz")
    matmul = roofline.kernels[0]
    assert matmul.name.startswith("nvjet_sm90")
    assert (matmul.operator, matmul.limiter, matmul.findings) == ("aten::mm", "registers", [])
    assert (matmul.registers_per_thread, matmul.shared_memory_bytes, matmul.block) == (168, 213188, [384, 1, 1])
    assert matmul.occupancy == pytest.approx(12 / 64)
    assert matmul.roof_share == pytest.approx(0.76, abs=0.05)
    assert "no_tensor_cores" not in found(roofline)
    assert {kernel.name for kernel in roofline.by_module} >= {"Optimizer.step#AdamW.step", "backward"}
    pinned = next(copy for copy in roofline.copies if copy.kind == "HtoD (Pinned -> Device)")
    assert (pinned.bytes, pinned.link_gbs) == (4 * 65536, 63.0)


def test_element_wise_chains_are_why_the_memory_bound_case_is(shared_traces: Path) -> None:
    analysis = analyze([str(shared_traces / "h100x2" / "memory_bound")], keep=False).analysis
    assert found(analysis.roofline)["unfused"] > 0.7
    assert analysis.verdict.cause is Cause.MEMORY_BOUND
    assert analysis.verdict.reasons[0] is Reason.UNFUSED


def test_nearly_all_kernels_of_the_launch_bound_case_are_tiny(shared_traces: Path) -> None:
    analysis = analyze([str(shared_traces / "h100x2" / "launch_bound")], keep=False).analysis
    assert analysis.roofline.tiny_kernels is not None
    assert analysis.roofline.tiny_kernels > 0.95
    assert Reason.TINY_KERNELS in analysis.verdict.reasons


def test_float32_convolutions_of_volta_leave_the_tensor_cores_idle(shared_traces: Path) -> None:
    roofline = roofline_of(shared_traces / "public" / "kineto" / "resnet50_num_workers_0.pt.trace.json.gz")
    assert roofline.findings[0].code == "no_tensor_cores"
    assert found(roofline)["no_tensor_cores"] == pytest.approx(0.395, abs=0.02)
    loaded = roofline.copies[0]
    assert (loaded.kind, loaded.count) == ("HtoD (Pageable -> Device)", 10)
    assert loaded.gbs == pytest.approx(10.0, abs=0.2)


def test_ampere_convolutions_in_tf32_are_left_alone(shared_traces: Path) -> None:
    roofline = roofline_of(shared_traces / "public" / "hta" / "a100_2rank_rank0_nccl_args.json.gz")
    assert "no_tensor_cores" not in found(roofline)
    assert "pageable_copies" not in found(roofline)


def test_operands_that_are_not_aligned_are_found(shared_traces: Path) -> None:
    roofline = roofline_of(shared_traces / "public" / "tracelens" / "h100_google_owlv2_large.json.gz")
    assert found(roofline)["unaligned"] == pytest.approx(0.190, abs=0.02)  # of the step with its 129 ms of loading
    assert first(roofline.kernels, "align1").operator == "aten::bmm"
    assert roofline.by_module[0].name == "Owlv2Attention"
    assert found(roofline)["pageable_copies"] == pytest.approx(0.013, abs=0.003)


def test_amd_kernels_have_no_occupancy_but_a_grid(shared_traces: Path) -> None:
    roofline = roofline_of(shared_traces / "public" / "tracelens" / "mi300x_8gpu_rank0_resnet_actckpt_rccl.json.gz")
    assert all(kernel.occupancy is None for kernel in roofline.kernels)
    assert first(roofline.kernels, "batch_norm_collect_statistics").limiter == "grid"
    assert first(roofline.by_module, "BatchNorm2d").operator == "aten::native_batch_norm"
