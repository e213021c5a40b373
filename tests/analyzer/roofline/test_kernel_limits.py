"""Kernel limits: each kernel is assigned to the limit that binds it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from stepscope.analyzer.roofline.kernel_costs import DTYPES, DecidedBy
from stepscope.analyzer.roofline.kernel_family import Family, is_communication
from stepscope.analyzer.roofline.kernel_limits import KernelLimits, kernel_limits
from stepscope.analyzer.roofline.utilization import coverage, dominant_dtype, peak_is_exceeded, step_flops
from stepscope.core.hardware.gpu_catalogue import GpuModel, find_gpu
from stepscope.core.vocabulary import CATEGORY_CODE, CATEGORY_ORDER, TimeCategory
from stepscope.trace.columns import Category, TraceColumns
from stepscope.trace.rows import launch_rows
from tests.trace.one_rank import read_trace

H100 = find_gpu("NVIDIA H100 80GB HBM3")
assert H100 is not None
GEMM = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NTT"
SPLIT_K = "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float>(P)"
ADD = "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<float>>(int)"
ADAM = "void multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>(P)"
BF16 = "c10::BFloat16"

Call = tuple[str, Sequence[object], list[str], list[tuple[str, float, int]]]
"""Operator's name, input dims and types; the kernels it launches: name, duration in us, blocks."""


def limits_of(tmp_path: Path, *calls: Call, gpu: GpuModel | None = H100) -> KernelLimits:
    """Limits of the kernels of these calls, in order, out of a trace written and read for the purpose."""
    events: list[dict[str, object]] = []
    time, device_time, correlation = 100.0, 1000.0, 1
    for number, (name, dims, types, kernels) in enumerate(calls, start=1):
        operator = {"External id": number, "Input Dims": dims, "Input type": types, "Concrete Inputs": [""] * len(dims)}
        events.append(event("cpu_op", name, 1, time, 10.0, operator))
        for kernel, duration, blocks in kernels:
            launch = time + 1 + correlation % 8
            events.append(event("cuda_runtime", "cudaLaunchKernel", 1, launch, 0.5, {"correlation": correlation}))
            launched = {"External id": number, "correlation": correlation, "grid": [blocks, 1, 1], "stream": 7}
            events.append(event("kernel", kernel, 7, device_time, duration, launched))
            device_time, correlation = device_time + duration, correlation + 1
        time += 100.0
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()))
    trace = read_trace(path)
    rows = trace.rows_of(Category.KERNEL)
    return kernel_limits(trace, rows, launch_rows(trace, rows), gpu=gpu)


def event(
    category: str, name: str, thread: int, start: float, duration: float, args: dict[str, object]
) -> dict[str, object]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": 0, "tid": thread, "ts": start, "dur": duration, "args": args,
    }  # fmt: skip


def product(size: int, *kernels: tuple[str, float, int], dtype: str = BF16) -> Call:
    return "aten::mm", [[size, size], [size, size]], [dtype, dtype], list(kernels)


def categories(limits: KernelLimits) -> list[TimeCategory]:
    return [CATEGORY_ORDER[code] for code in limits.category]


def test_a_matmul_far_below_peak_is_still_compute_bound(tmp_path: Path) -> None:
    limits = limits_of(tmp_path, product(8192, (GEMM, 6000.0, 132)))
    assert categories(limits) == [TimeCategory.COMPUTE_BOUND]
    assert limits.decided_by[0] == DecidedBy.MODEL
    assert limits.floor_ns_flops[0] == pytest.approx(2 * 8192**3 / 989.4e12 * 1e9)
    assert limits.efficiency[0] == pytest.approx(limits.floor_ns_flops[0] / 6e6)


def test_a_thin_matmul_is_memory_bound(tmp_path: Path) -> None:
    thin: Call = ("aten::mm", [[1, 16384], [16384, 16384]], [BF16, BF16], [(GEMM, 200.0, 132)])
    assert categories(limits_of(tmp_path, thin)) == [TimeCategory.MEMORY_BOUND]


@pytest.mark.parametrize(
    ("duration_us", "blocks", "latency_bound"),
    [(4.0, 500, True), (200.0, 12, True), (200.0, 500, False), (0.3, 500, False)],
    ids=["short", "few blocks", "long and wide", "short but near its floor"],
)
def test_latency_binds_short_or_small_kernels_far_from_their_floors(
    tmp_path: Path, duration_us: float, blocks: int, latency_bound: bool
) -> None:
    small: Call = ("aten::mm", [[512, 384], [384, 512]], [BF16, BF16], [(GEMM, duration_us, blocks)])
    assert (categories(limits_of(tmp_path, small)) == [TimeCategory.LATENCY_BOUND]) == latency_bound


def test_side_kernels_bear_their_own_bytes_and_none_of_the_flops(tmp_path: Path) -> None:
    limits = limits_of(tmp_path, product(4096, (GEMM, 300.0, 132), (SPLIT_K, 10.0, 200)))
    assert limits.flops[0] == 2 * 4096**3
    assert limits.flops[1] == 0
    assert H100 is not None
    # two parts in float32 are read, their sum is written in bf16
    assert limits.floor_ns_bytes[1] == pytest.approx(4096**2 * (2 * 4 + 2) / H100.memory_bytes_per_second * 1e9)
    assert categories(limits) == [TimeCategory.COMPUTE_BOUND, TimeCategory.MEMORY_BOUND]


def test_kernels_that_work_together_share_the_cost_by_duration(tmp_path: Path) -> None:
    limits = limits_of(tmp_path, product(4096, (GEMM, 300.0, 132), (GEMM, 100.0, 132)))
    np.testing.assert_allclose(limits.flops, [1.5 * 4096**3, 0.5 * 4096**3])


def test_a_kernel_of_unknown_name_does_its_operators_work_when_alone(tmp_path: Path) -> None:
    limits = limits_of(tmp_path, product(4096, ("mystery", 300.0, 132)))
    assert categories(limits) == [TimeCategory.COMPUTE_BOUND]
    assert limits.family[0] == Family.OTHER


def test_without_a_model_the_family_decides_and_unknown_families_stay_open(tmp_path: Path) -> None:
    limits = limits_of(tmp_path, ("my::op", [], [], [(GEMM, 50.0, 132), (ADAM, 50.0, 132), ("mystery", 50.0, 132)]))
    assert categories(limits) == [TimeCategory.COMPUTE_BOUND, TimeCategory.MEMORY_BOUND, TimeCategory.COMPUTE_OTHER]
    assert list(limits.decided_by) == [DecidedBy.NAME, DecidedBy.NAME, DecidedBy.NOTHING]
    found = coverage(limits)
    assert (found.model, found.by_name, found.none) == pytest.approx((0, 2 / 3, 1 / 3))


def test_an_unknown_gpu_leaves_families_to_decide_but_counts_flops(tmp_path: Path) -> None:
    limits = limits_of(tmp_path, product(4096, (GEMM, 300.0, 132)), gpu=None)
    assert list(limits.decided_by) == [DecidedBy.NAME]
    assert step_flops(limits.model_flops, limits.flops, np.array([True])).model == 2 * 4096**3


def test_float32_products_run_in_the_type_their_kernel_names(tmp_path: Path) -> None:
    limits = limits_of(
        tmp_path,
        product(4096, ("ampere_sgemm_128x64_nn", 5000.0, 500), dtype="float"),
        product(4096, ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x64>(P)", 900.0, 500), dtype="float"),
    )
    assert [DTYPES[code] for code in limits.dtype] == ["float32", "tfloat32"]


def test_type_with_most_flops_dominates(tmp_path: Path) -> None:
    both = product(4096, (GEMM, 300.0, 132)), product(512, ("ampere_sgemm_128x64_nn", 90.0, 500), dtype="float")
    assert dominant_dtype(limits_of(tmp_path, *both)) == "bfloat16"
    assert dominant_dtype(limits_of(tmp_path, ("aten::add", [[8], [8]], [BF16, BF16], [(ADD, 3.0, 1)]))) is None


def test_a_product_faster_than_the_peak_convicts_the_peak(tmp_path: Path) -> None:
    assert peak_is_exceeded(limits_of(tmp_path, product(8192, (GEMM, 500.0, 132))))
    assert not peak_is_exceeded(limits_of(tmp_path, product(8192, (GEMM, 1500.0, 132))))


def test_types_that_the_matrix_units_do_not_know_run_as_float32() -> None:
    volta = find_gpu("Tesla V100-SXM2-32GB")
    assert volta is not None
    assert volta.peak_flops("tfloat32") == volta.dense_flops["float32"]
    assert volta.peak_flops("bfloat16") == volta.dense_flops["float32"]


def test_no_kernels_make_no_limits(tmp_path: Path) -> None:
    limits = limits_of(tmp_path, ("aten::mm", [], [], []))
    assert len(limits) == 0
    assert coverage(limits).model == 0
    assert not peak_is_exceeded(limits)


# Recorded runs -------------------------------------------------------------------------------------------------------


def recorded(shared_traces: Path, case: str, rank: int = 0) -> tuple[TraceColumns, npt.NDArray[np.intp], KernelLimits]:
    trace = read_trace(shared_traces / "h100x2" / case / f"{case}.rank{rank}.json.gz")
    return trace, compute_kernels(trace), limits_of_trace(trace)


def compute_kernels(trace: TraceColumns) -> npt.NDArray[np.intp]:
    kernels = trace.rows_of(Category.KERNEL)
    return kernels[~trace.named(kernels, is_communication)]


def limits_of_trace(trace: TraceColumns) -> KernelLimits:
    kernels = compute_kernels(trace)
    return kernel_limits(trace, kernels, launch_rows(trace, kernels), gpu=find_gpu(trace.header.devices[0].name))


def time_share(limits: KernelLimits, category: TimeCategory) -> float:
    mine = limits.category == CATEGORY_CODE[category]
    return float(limits.duration_ns[mine].sum() / limits.duration_ns.sum())


@pytest.mark.shared
@pytest.mark.parametrize("case", ["ddp", "fsdp", "straggler"])
def test_a_big_transformer_is_compute_bound(shared_traces: Path, case: str) -> None:
    _, _, limits = recorded(shared_traces, case)
    assert time_share(limits, TimeCategory.COMPUTE_BOUND) > 2 * time_share(limits, TimeCategory.MEMORY_BOUND)
    assert not peak_is_exceeded(limits)


@pytest.mark.shared
def test_pointwise_passes_make_a_run_memory_bound(shared_traces: Path) -> None:
    _, _, limits = recorded(shared_traces, "memory_bound")
    assert time_share(limits, TimeCategory.MEMORY_BOUND) > 4 * time_share(limits, TimeCategory.COMPUTE_BOUND)


@pytest.mark.shared
def test_tiny_kernels_are_latency_bound(shared_traces: Path) -> None:
    _, _, limits = recorded(shared_traces, "launch_bound")
    assert time_share(limits, TimeCategory.LATENCY_BOUND) > 0.9


H100_CASES = (
    "ddp", "fsdp", "fsdp_p2poff", "tp", "pp_few", "pp_many", "memory_bound", "launch_bound", "straggler", "slow_loader",
    "ckpt_stall",
)  # fmt: skip


@pytest.mark.shared
@pytest.mark.parametrize("case", H100_CASES)
def test_the_cost_of_nearly_all_kernel_time_is_known(shared_traces: Path, case: str) -> None:
    _, _, limits = recorded(shared_traces, case)
    found = coverage(limits)
    assert found.costed > 0.97
    assert found.none < 0.003
    assert found.costed + found.by_name + found.none == pytest.approx(1.0)


@pytest.mark.shared
@pytest.mark.parametrize("trace", ["Falconsai_nsfw*", "Qwen*", "gaunernst*"])
def test_the_cost_of_inference_kernels_is_known(shared_traces: Path, trace: str) -> None:
    (path,) = (shared_traces / "public" / "tracelens").glob(f"h100_{trace}.json.gz")
    found = coverage(limits_of_trace(read_trace(path)))
    assert found.costed > 0.97


@pytest.mark.shared
def test_the_fused_optimizer_is_sized_by_the_gradients(shared_traces: Path) -> None:
    _, _, limits = recorded(shared_traces, "ckpt_stall")  # no kernels from before the trace
    passes = limits.decided_by == DecidedBy.PARAMETERS
    # fused AdamW in bf16 moves 7 values of 2 bytes for each parameter, in each of 3 steps
    num_parameters = 12 * (12 * 2048**2 + 13 * 2048) + (2 * 32000 + 2) * 2048
    assert H100 is not None
    moved = np.nansum(limits.floor_ns_bytes[passes]) / 1e9 * H100.memory_bytes_per_second
    assert moved == pytest.approx(3 * 7 * 2 * num_parameters, rel=0.001)


@pytest.mark.shared
def test_flops_of_a_step_are_six_for_each_parameter_and_token_plus_attention(shared_traces: Path) -> None:
    trace, kernels, limits = recorded(shared_traces, "ddp")
    layers, width, vocabulary, tokens, sequence = 12, 2048, 32000, 4 * 2048, 2048
    weights = layers * 12 * width**2 + vocabulary * width  # those that enter products: the embedding is a lookup
    causal_attention = 6 * layers * tokens * sequence * width  # forward and twice that backward, half the square
    expected = 6 * weights * tokens + causal_attention
    assert step_flops(limits.model_flops, limits.flops, launched_in_step(trace, kernels, 6)).model == pytest.approx(
        expected, rel=0.001
    )
    assert step_flops(limits.model_flops, limits.flops, launched_in_step(trace, kernels, 6)).executed == pytest.approx(
        expected + causal_attention / 6, rel=0.001
    )


@pytest.mark.shared
def test_model_flops_utilization_of_the_healthy_run(shared_traces: Path) -> None:
    trace, kernels, limits = recorded(shared_traces, "ddp")
    gpu, dtype = find_gpu(trace.header.devices[0].name), dominant_dtype(limits)
    assert gpu is not None
    assert dtype == "bfloat16"
    peak = gpu.peak_flops(dtype)
    assert peak is not None
    flops = step_flops(limits.model_flops, limits.flops, launched_in_step(trace, kernels, 6))
    truth = json.loads((shared_traces / "h100x2" / "truth.json").read_text())
    seconds = truth["ddp"]["ranks"][0]["step_ms"] / 1000
    assert flops.model / (seconds * peak) == pytest.approx(0.450, abs=0.003)


def launched_in_step(trace: TraceColumns, kernels: npt.NDArray[np.intp], step: int) -> npt.NDArray[np.bool_]:
    """Whether each kernel's launch call starts inside the host's step."""
    annotations = trace.rows_of(Category.USER_ANNOTATION)
    row = annotations[trace.name[annotations] == trace.names.index(f"ProfilerStep#{step}")][0]
    calls = trace.rows_of(Category.RUNTIME)
    inside = (trace.start_ns[calls] >= trace.start_ns[row]) & (trace.start_ns[calls] < trace.end_ns[row])
    return np.isin(trace.correlation[kernels], trace.correlation[calls[inside]])
