"""Occupancy of a launch agrees with CUDA's calculator and with what Kineto recorded."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.kernels.occupancy import LaunchFit, Limiter, fit_launches
from stepscope.trace.columns import KernelLaunch, TraceDevice
from tests.trace.one_rank import read_trace

H100 = TraceDevice(0, "NVIDIA H100 80GB HBM3", 132, None, (9, 0), 32, 2048, 65536, 233472)
A100 = TraceDevice(0, "NVIDIA A100-SXM4-80GB", 108, None, (8, 0), 32, 2048, 65536, 167936)
V100 = TraceDevice(0, "Tesla V100-SXM2-16GB", 80, None, (7, 0), 32, 2048, 65536, 98304)
RTX_2080 = TraceDevice(0, "NVIDIA GeForce RTX 2080 Ti", 68, None, (7, 5), 32, 1024, 65536, 65536)
MI300X = TraceDevice(0, "AMD Instinct MI300X", 304, None, (9, 4), 64, 2048, None, None)


def fit_of(
    device: TraceDevice | None, blocks: int, threads: int, registers: int | None, shared: int | None
) -> LaunchFit:
    return fit_launches([KernelLaunch((blocks, 1, 1), (threads, 1, 1), registers, shared)], device)


@pytest.mark.parametrize(
    ("device", "threads", "registers", "shared_bytes", "occupancy", "limiter"),
    [
        (H100, 384, 168, 213188, 12 / 64, Limiter.REGISTERS),  # a Hopper matmul: one block an SM
        (H100, 128, 32, 0, 1.0, Limiter.THREADS),
        (H100, 128, 255, 0, 8 / 64, Limiter.REGISTERS),
        (H100, 256, 32, 100_000, 16 / 64, Limiter.SHARED_MEMORY),  # 2 x (100,000 + 1 KB) of 228 KB
        (H100, 32, 16, 0, 32 / 64, Limiter.BLOCKS),
        (A100, 1024, 64, 0, 32 / 64, Limiter.REGISTERS),
        (A100, 256, 40, 0, 48 / 64, Limiter.REGISTERS),
        (A100, 128, 32, 82_944, 8 / 64, Limiter.SHARED_MEMORY),
        (A100, 128, 32, 83_072, 4 / 64, Limiter.SHARED_MEMORY),  # the reserved KB of each block tips it
        (V100, 512, 32, 0, 1.0, Limiter.THREADS),
        (V100, 64, 32, 48 * 1024, 4 / 64, Limiter.SHARED_MEMORY),
        (V100, 64, 20, 0, 1.0, Limiter.THREADS),
        (RTX_2080, 32, 20, 0, 16 / 32, Limiter.BLOCKS),
        (RTX_2080, 64, 20, 0, 1.0, Limiter.THREADS),
    ],
)
def test_known_results_of_the_calculator(
    device: TraceDevice, threads: int, registers: int, shared_bytes: int, occupancy: float, limiter: Limiter
) -> None:
    fit = fit_of(device, 1_000_000, threads, registers, shared_bytes)
    assert fit.occupancy[0] == pytest.approx(occupancy)
    assert Limiter(fit.limiter[0]) is limiter


@pytest.mark.parametrize(
    ("blocks", "waves", "achieved", "limiter"),
    [
        (66, 66 / 264, 0.25, Limiter.GRID),  # half of the SMs have one of the two blocks that they hold
        (264, 1.0, 1.0, Limiter.THREADS),
        (300, 300 / 264, 1.0, Limiter.GRID),  # the second wave is nearly empty
        (500, 500 / 264, 1.0, Limiter.THREADS),
    ],
)
def test_a_grid_that_does_not_fill_its_waves_limits(
    blocks: int, waves: float, achieved: float, limiter: Limiter
) -> None:
    fit = fit_of(H100, blocks, 1024, 32, 0)
    assert (fit.waves[0], fit.achieved[0]) == (pytest.approx(waves), pytest.approx(achieved))
    assert Limiter(fit.limiter[0]) is limiter


def test_what_is_not_recorded_is_unknown() -> None:
    for fit in (fit_of(H100, 8, 256, None, None), fit_of(None, 8, 256, 32, 0), fit_launches([], H100)):
        assert np.isnan(fit.occupancy).all()
        assert np.isnan(fit.achieved).all()
    assert Limiter(fit_of(H100, 8, 256, None, None).limiter[0]) is Limiter.UNKNOWN


def test_of_amd_only_the_grid_is_judged() -> None:
    small, large = fit_of(MI300X, 64, 256, None, None), fit_of(MI300X, 3040, 256, None, None)
    assert (Limiter(small.limiter[0]), Limiter(large.limiter[0])) == (Limiter.GRID, Limiter.UNKNOWN)


def test_a_launch_that_cannot_be_is_unknown() -> None:
    fit = fit_of(H100, 8, 1024, 255, 0)  # 261,120 registers of 65,536
    assert np.isnan(fit.occupancy[0])
    assert Limiter(fit.limiter[0]) is Limiter.UNKNOWN


@given(
    device=st.sampled_from([H100, A100, V100, RTX_2080]),
    blocks=st.integers(0, 2**70),
    threads=st.integers(0, 2**41),
    registers=st.integers(0, 2**70),
    shared_bytes=st.integers(0, 2**70),
)
def test_occupancy_is_a_share(
    device: TraceDevice, blocks: int, threads: int, registers: int, shared_bytes: int
) -> None:
    fit = fit_of(device, blocks, threads, registers, shared_bytes)
    for value in (fit.occupancy[0], fit.achieved[0]):
        assert np.isnan(value) or 0 <= value <= 1
    assert np.isnan(fit.achieved[0]) or fit.achieved[0] <= fit.occupancy[0]


@given(
    threads=st.integers(1, 32).map(lambda warps: warps * 32),
    registers=st.integers(1, 254),
    shared_bytes=st.integers(0, 200_000),
)
def test_more_registers_or_memory_never_raise_it(threads: int, registers: int, shared_bytes: int) -> None:
    base = fit_of(H100, 10_000, threads, registers, shared_bytes).occupancy[0]
    for other in (
        fit_of(H100, 10_000, threads, registers + 1, shared_bytes),
        fit_of(H100, 10_000, threads, registers, shared_bytes + 128),
    ):
        assert not other.occupancy[0] > base


_RECORDED = (
    ("h100x2/ddp/ddp.rank0.json.gz", 46, 7),
    ("public/hta/a100_2rank_rank0_nccl_args.json.gz", 162, 50),
    ("public/hta/v100_ns_resolution.pt.trace.json.gz", 173, 0),
    ("public/param/resnet_kineto.json.gz", 100, 0),
    ("public/tracelens/b200_8gpu_rank0_eager.json.gz", 27, 7),
)


@pytest.mark.shared
@pytest.mark.parametrize(("name", "num_launches", "num_left_out"), _RECORDED)
def test_recorded_estimates_agree(shared_traces: Path, name: str, num_launches: int, num_left_out: int) -> None:
    """Kineto's estimate, whole percents, but for launches with over 48 KB of shared memory: it says 0 for these."""
    trace = read_trace(shared_traces / name)
    fit = fit_launches(trace.launches, trace.header.devices[0])
    recorded = _estimates(shared_traces / name)
    assert len(trace.launches) == num_launches
    left_out = 0
    for launch, achieved in zip(trace.launches, fit.achieved.tolist(), strict=True):
        percent = recorded[launch]
        if (launch.shared_memory_bytes or 0) > 48 * 1024 and percent == 0:
            left_out += 1
        else:
            assert 100 * achieved == pytest.approx(percent, abs=1.01)
    assert left_out == num_left_out


def _estimates(path: Path) -> dict[KernelLaunch, int]:
    events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()), strict=False)["traceEvents"]
    arguments = [event["args"] for event in events if "est. achieved occupancy %" in event.get("args", {})]
    return {
        KernelLaunch(
            tuple(args["grid"]), tuple(args["block"]), args["registers per thread"], args["shared memory"]
        ): args["est. achieved occupancy %"]
        for args in arguments
    }
