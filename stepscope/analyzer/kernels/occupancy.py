"""Occupancy of a launch: resident warps of the device, and what limits them.

The formulas are those of CUDA's occupancy calculator (cuda_occupancy.h) with the device limits in the trace and the
largest shared memory that a kernel can opt in to. Kineto's "est. achieved occupancy %" ignores that opt-in: it is 0
for every kernel with more than 48 KB, such as tensor-core matmuls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from stepscope.analyzer.roofline.kernel_costs import Codes
from stepscope.analyzer.roofline.operator_call import Floats
from stepscope.trace.columns import KernelLaunch, TraceDevice


class Limiter(IntEnum):
    """Resource that limits a kernel's resident warps, and so its occupancy."""

    UNKNOWN = 0
    THREADS = 1
    """nothing else: the multiprocessors are full"""
    REGISTERS = 2
    SHARED_MEMORY = 3
    BLOCKS = 4
    """a multiprocessor takes only so many blocks, and these are small"""
    GRID = 5
    """too few blocks for the device, or a last wave that leaves much of it empty"""


FULL_WAVES = 0.75
"""Below this share of its waves filled, a grid loses more than a quarter of the device to its last wave."""

_REGISTER_UNIT = 256
"""Allocation unit of a warp's registers (compute capability 3 and later)."""
_MAX_REGISTERS = 255
_MAX_COUNT = 2**40
"""Larger sizes are damage."""


class _SmLimits(NamedTuple):
    """Limits of one multiprocessor of an NVIDIA GPU."""

    num_sms: int
    max_threads: int
    max_blocks: int
    registers: int
    shared_memory_bytes: int
    warp_size: int
    register_files: int
    shared_memory_unit_bytes: int
    reserved_bytes_per_block: int

    @property
    def max_warps(self) -> int:
        return self.max_threads // self.warp_size


def has_nvidia_limits(device: TraceDevice) -> bool:
    """Kernels: whether a traced device is NVIDIA's, so that its occupancy rules and tensor cores apply."""
    name = device.name.lower()
    return device.warp_size in (None, 32) and not any(word in name for word in ("amd", "radeon", "instinct", "intel"))


def _sm_limits(device: TraceDevice) -> _SmLimits | None:
    """A device's limits, or None where the trace lacks them or the device is not NVIDIA's."""
    if not has_nvidia_limits(device) or not (
        device.compute_capability
        and device.num_sms
        and device.max_threads_per_sm
        and device.registers_per_sm
        and device.shared_memory_per_sm_bytes
        and device.warp_size
    ):
        return None
    capability = device.compute_capability
    is_recent = capability >= (8, 0)
    return _SmLimits(
        num_sms=device.num_sms,
        max_threads=device.max_threads_per_sm,
        max_blocks=_max_blocks(capability),
        registers=device.registers_per_sm,
        shared_memory_bytes=device.shared_memory_per_sm_bytes,
        warp_size=device.warp_size,
        register_files=2 if capability == (6, 0) else 4,
        shared_memory_unit_bytes=128 if is_recent else 256,
        reserved_bytes_per_block=1024 if is_recent else 0,
    )


def _max_blocks(capability: tuple[int, int]) -> int:
    """Resident blocks per multiprocessor (CUDA programming guide, technical specifications)."""
    major, minor = capability
    if major < 5:
        return 16
    if major == 7:
        return 16 if minor == 5 else 32
    if major == 8:
        return {0: 32, 9: 24}.get(minor, 16)
    return 24 if major in (11, 12) else 32


class LaunchFit(NamedTuple):
    """Occupancy of kernel launches, one entry a launch; nan is unknown.

    Attributes:
        occupancy: resident warps / largest number on a multiprocessor, for a large enough grid.
        achieved: occupancy with the grid's blocks spread evenly, as Kineto estimates it.
        waves: the grid's blocks / blocks that the device holds at a time.
        limiter: Limiter codes.
        num_blocks: of the grid.
    """

    occupancy: Floats
    achieved: Floats
    waves: Floats
    limiter: Codes
    num_blocks: Floats

    @property
    def wave_efficiency(self) -> Floats:
        """Share of the waves' slots that the grid fills."""
        return self.waves / np.maximum(np.ceil(self.waves), 1.0)  # a grid without blocks fills nothing


def fit_launches(launches: Sequence[KernelLaunch], device: TraceDevice | None) -> LaunchFit:
    """Kernels: occupancy of each kernel launch on a device, by its blocks, registers and shared memory."""
    num_blocks = _counts(launch.num_blocks for launch in launches)
    limits = _sm_limits(device) if device is not None else None
    if limits is None:
        num_sms = device.num_sms if device is not None and device.num_sms else 0
        unknown = np.full(len(launches), np.nan)
        limiter = np.where(num_blocks < num_sms, Limiter.GRID, Limiter.UNKNOWN).astype(np.uint8)
        return LaunchFit(unknown, unknown, unknown, limiter, num_blocks)
    warps = np.ceil(_counts(launch.threads_per_block for launch in launches) / limits.warp_size)
    resident, limiter = _resident_blocks(launches, warps, limits)
    resident[resident == 0] = np.nan  # impossible on this device
    limiter[np.isnan(resident)] = Limiter.UNKNOWN
    waves = num_blocks / (resident * limits.num_sms)
    fit = LaunchFit(
        occupancy=resident * warps / limits.max_warps,
        achieved=np.minimum(resident, num_blocks / limits.num_sms) * warps / limits.max_warps,
        waves=waves,
        limiter=limiter,
        num_blocks=num_blocks,
    )
    limiter[(waves < 1) | (fit.wave_efficiency < FULL_WAVES)] = Limiter.GRID
    return fit


def _resident_blocks(launches: Sequence[KernelLaunch], warps: Floats, limits: _SmLimits) -> tuple[Floats, Codes]:
    """Blocks that a multiprocessor holds at a time, and the limiter; nan where not recorded."""
    registers = _counts(launch.registers_per_thread for launch in launches)
    registers[registers > _MAX_REGISTERS] = np.nan
    shared = _counts(launch.shared_memory_bytes for launch in launches)
    per_warp = _round_up(np.maximum(registers, 1) * limits.warp_size, _REGISTER_UNIT)
    warps_of_registers = (limits.registers // limits.register_files // per_warp) * limits.register_files
    per_block = _round_up(shared + limits.reserved_bytes_per_block, limits.shared_memory_unit_bytes)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_limit = {
            Limiter.THREADS: limits.max_warps // warps,
            Limiter.REGISTERS: warps_of_registers // warps,
            Limiter.SHARED_MEMORY: np.where(per_block == 0, np.inf, limits.shared_memory_bytes // per_block),
            Limiter.BLOCKS: np.full(len(launches), float(limits.max_blocks)),
        }
    table = np.vstack(list(by_limit.values()))
    table[:, ~np.isfinite(warps) | (warps < 1)] = np.nan
    resident = table.min(axis=0)  # nan where any is
    tightest = np.where(np.isnan(table), np.inf, table).argmin(axis=0)  # threads first among equals
    return resident, np.array(list(by_limit), np.uint8)[tightest]


def _round_up(values: Floats, unit: int) -> Floats:
    return np.ceil(values / unit) * unit


def _counts(values: Iterable[int | None]) -> Floats:
    """As floats; nan where unknown or implausible."""
    return np.array([np.nan if value is None or value > _MAX_COUNT else value for value in values], np.float64)
