"""Steps made of kernels, for tests of headroom."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.analyzer.headroom.changes import JobFacts
from stepscope.analyzer.headroom.rates import KernelRates
from stepscope.analyzer.headroom.step_kernels import StepKernels
from stepscope.analyzer.headroom.step_model import Span, StepModel, step_model
from stepscope.analyzer.roofline.kernel_costs import DTYPES
from stepscope.analyzer.roofline.kernel_family import family_of
from stepscope.analyzer.roofline.operator_cost import operator_cost
from stepscope.core.hardware.gpu_catalogue import find_gpu
from stepscope.trace.columns import IntColumn, Shapes
from tests.dashboard import example_run

BF16, FLOAT = "c10::BFloat16", "float"
GEMM = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"
SGEMM = "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(Params)"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float>>"
COPY = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>"
SOFTMAX = "void (anonymous namespace)::cunn_SoftMaxForward<4, float>"
H200 = find_gpu("NVIDIA H200")
FACTS = JobFacts(example_run.make_analysis(example_run.make_timelines()), {})

FAST_HOST = Span(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel and the call that launched it; each is a call of its own."""

    operator: str
    dims: Sequence[Sequence[int]]
    us: float
    name: str = ELEMENTWISE
    types: Sequence[str] = ()
    values: Sequence[str] = ()
    dtype: str = ""
    by_main: bool = True
    by_optimizer: bool = False
    repeats_forward: bool = False
    blocks: int = 10_000

    @property
    def shapes(self) -> Shapes:
        types = [*self.types, *[self.types[-1] if self.types else BF16] * (len(self.dims) - len(self.types))]
        return Shapes(json.dumps(self.dims), json.dumps(types), json.dumps(self.values))


def backward(kernel: Kernel) -> Kernel:
    return replace(kernel, by_main=False)


def kernels_of(rows: Sequence[Kernel]) -> StepKernels:
    """The rows as a step, in order."""
    names, operators = (
        list(dict.fromkeys(values)) for values in zip(*((r.name, r.operator) for r in rows), strict=True)
    )
    calls = list(dict.fromkeys(row.shapes for row in rows))
    costs = [operator_cost(row.operator, row.shapes, kernel_name=row.name) for row in rows]

    def column(values: Sequence[int]) -> IntColumn:
        return np.array(values, np.int64)

    return StepKernels(
        names=names,
        operators=operators,
        calls=calls,
        name=column([names.index(row.name) for row in rows]),
        operator=column([operators.index(row.operator) for row in rows]),
        call=column([calls.index(row.shapes) for row in rows]),
        work=column(list(range(len(rows)))),
        stream=column([7] * len(rows)),
        duration_ns=np.array([row.us * 1e3 for row in rows]),
        by_main=np.array([row.by_main for row in rows]),
        by_optimizer=np.array([row.by_optimizer for row in rows]),
        num_blocks=column([row.blocks for row in rows]),
        repeats_forward=np.array([row.repeats_forward for row in rows]),
        family=column([family_of(row.name) for row in rows]),
        dtype=column([DTYPES.index(row.dtype) for row in rows]),
        flops=np.array([cost.flops if cost else np.nan for cost in costs]),
        num_bytes=np.array([cost.num_bytes if cost else np.nan for cost in costs]),
    )


def step_of(
    rows: Sequence[Kernel], *, base_ms: float | None = None, host_ms: Span | None = FAST_HOST, lost_ms: float = 0.0
) -> StepModel:
    """The rows as the step of a job on an H200, by default without anything beside them."""
    kernels = kernels_of(rows)
    compute_ms = kernels.total_ns / 1e6
    assert H200 is not None
    base_ms = compute_ms + lost_ms if base_ms is None else base_ms
    return step_model(
        kernels, KernelRates(H200), base_ms=base_ms, compute_ms=compute_ms, host_ms=host_ms, lost_ms=lost_ms
    )
