"""What do the kernels and copies of a job suffer from, how much time is that, and what helps first?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.kernels.copies import is_pageable, takes_host_link
from stepscope.analyzer.kernels.flags import INEFFICIENT_BELOW, LOW_OCCUPANCY, SHORTEST_CHAIN, TINY_NS
from stepscope.analyzer.kernels.occupancy import FULL_WAVES
from stepscope.analyzer.kernels.sums import COUNT, OWNED_NS, TINY_COUNT, Flag, flagged
from stepscope.core.analysis import CopyTime, KernelFinding, KernelTime
from stepscope.core.counting import counted
from stepscope.core.kernel_names import short_kernel_name

SHOWN_FROM = 0.01
"""Findings under a hundredth of the ranks' windows are not worth a reader's time."""
MANY_TINY = 0.5
"""Share of the kernels that are tiny from which their launching, not their work, shapes the step."""
PAGEABLE_COPIES = "pageable_copies"

_MESSAGES = {
    Flag.NO_TENSOR_CORES: "matrix kernels that multiply on the plain units of a GPU that has tensor cores",
    Flag.UNALIGNED: "tensor-core kernels that load one or two elements at a time, as their operands are not aligned",
    Flag.SMALL_GRID: "kernels with fewer blocks than the GPU has multiprocessors, far from their roof",
    Flag.TAIL_WAVE: f"kernels whose last wave leaves more than {1 - FULL_WAVES:.0%} of the GPU's places empty",
    Flag.LOW_OCCUPANCY: f"kernels whose registers or shared memory leave room for under {LOW_OCCUPANCY:.0%} of warps",
    Flag.INEFFICIENT_KERNELS: f"kernels that reach under {INEFFICIENT_BELOW:.0%} of what the GPU allows them",
    Flag.UNFUSED: f"element-wise kernels, {SHORTEST_CHAIN} or more in a row, each reading and writing memory anew",
    Flag.TINY_KERNELS: f"kernels under {TINY_NS / 1e3:.0f} us, which cost about as much to launch as to run",
}
_ADVICE = {
    Flag.NO_TENSOR_CORES: (
        "float32: torch.set_float32_matmul_precision('high') (TF32, from Ampere on) or autocast to a 16-bit type; "
        "16-bit: make the dimensions multiples of 8"
    ),
    Flag.UNALIGNED: "pad dimensions (vocabulary, hidden, channels) to multiples of 8 for 16-bit types, of 4 for TF32",
    Flag.SMALL_GRID: "larger batches, or run independent work beside it on another stream",
    Flag.TAIL_WAVE: "sizes that make the number of tiles a multiple of the number of multiprocessors",
    Flag.LOW_OCCUPANCY: "own kernels: fewer registers (__launch_bounds__, num_warps) or smaller tiles",
    Flag.INEFFICIENT_KERNELS: "look at the shapes in the kernels table: odd sizes, transposed layouts, older kernels",
    Flag.UNFUSED: "torch.compile for chains in the model; foreach or fused=True for the optimizer",
    Flag.TINY_KERNELS: "CUDA graphs (torch.compile mode='reduce-overhead'), fusion, or larger batches",
}


def kernel_findings(
    total: npt.NDArray[np.float64], kernels: Sequence[KernelTime], copies: Sequence[CopyTime], window_ms: float
) -> list[KernelFinding]:
    """Judge a job's kernels and copies.

    Args:
        total: sums over all ranks, shape (sums.SIZE,).
        kernels: by name.
        copies: by kind.
        window_ms: all ranks' windows together.
    """
    found = [_of_flag(flag, total, kernels, window_ms) for flag in Flag if _is_worth_saying(flag, total, window_ms)]
    pageable = [copy for copy in copies if is_pageable(copy.kind)]
    time = sum(copy.ms for copy in pageable)
    if window_ms and time >= SHOWN_FROM * window_ms:
        found.append(_of_copies(pageable, time, window_ms))
    return sorted(found, key=lambda finding: -finding.fraction)


def _is_worth_saying(flag: Flag, total: npt.NDArray[np.float64], window_ms: float) -> bool:
    if not window_ms or flagged(total, flag) / 1e6 < SHOWN_FROM * window_ms:
        return False
    return flag is not Flag.TINY_KERNELS or (tiny_share(total) or 0.0) >= MANY_TINY


def tiny_share(total: npt.NDArray[np.float64]) -> float | None:
    """Share of the kernels that are tiny, by number; None without kernels."""
    return float(total[TINY_COUNT] / total[COUNT]) if total[COUNT] else None


def _of_flag(
    flag: Flag, total: npt.NDArray[np.float64], kernels: Sequence[KernelTime], window_ms: float
) -> KernelFinding:
    time = flagged(total, flag) / 1e6
    message = f"{time * 1e6 / total[OWNED_NS]:.0%} of kernel time is in {_MESSAGES[flag]}"
    if flag is Flag.TINY_KERNELS:
        message = f"{tiny_share(total):.0%} of the kernels, and {message[0].lower()}{message[1:]}"
    worst = next((kernel for kernel in kernels if flag.name.lower() in kernel.findings), None)
    if worst is not None:
        where = f" ({worst.operator})" if worst.operator else ""
        message += f"; the largest is {short_kernel_name(worst.name)}{where}"
    return KernelFinding(flag.name.lower(), time / window_ms, time, message, _ADVICE[flag])


def _of_copies(pageable: Sequence[CopyTime], time: float, window_ms: float) -> KernelFinding:
    num_bytes = sum(copy.bytes for copy in pageable)
    rate = f"{num_bytes / time / 1e6:.1f} GB/s"
    link = next((copy.link_gbs for copy in pageable if copy.link_gbs is not None), None)
    against = "" if link is None else f" of the {link:.0f} GB/s that the link carries"
    message = (
        f"{counted(sum(copy.count for copy in pageable), 'copy')} from or to pageable memory ran at {rate}{against}"
    )
    advice = "pin_memory=True in the loader, and .to(device, non_blocking=True)"
    return KernelFinding(PAGEABLE_COPIES, time / window_ms, time, message, advice)


def pageable_share(copies: Sequence[CopyTime]) -> float:
    """Share of the time of copies over the host's link that pageable memory takes part in."""
    over_link = sum(copy.ms for copy in copies if takes_host_link(copy.kind))
    return sum(copy.ms for copy in copies if is_pageable(copy.kind)) / over_link if over_link else 0.0
