"""Do the profiling counters count, or are they 0 because they stopped?

DCGM exports 0 for all of them after an XID 31, or after weeks, with no word about it (NVIDIA/DCGM#303,
NVIDIA/dcgm-exporter#662). A GPU whose engine was never active was not busy, so that one of the two is wrong.
The values of a page are of one moment, and its zeros must not be read for idleness even once; `contradictions` watches
what several sources say over time.
"""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.core.gpu_metrics import GPU

_ENGINE = (GPU + "graphics_engine_active_ratio", GPU + "sm_active_ratio")
_PIPES = (GPU + "tensor_active_ratio", GPU + "dram_active_ratio")
PROFILING = frozenset(
    GPU + name
    for name in (
        *("graphics_engine_active_ratio", "sm_active_ratio", "sm_occupancy_ratio", "dram_active_ratio"),
        *("tensor_active_ratio", "tensor_hmma_active_ratio", "tensor_imma_active_ratio", "tensor_dfma_active_ratio"),
        *("fp64_active_ratio", "fp32_active_ratio", "fp16_active_ratio", "integer_active_ratio"),
        *("pcie_transmit_bytes_per_second", "pcie_receive_bytes_per_second"),
        *("nvlink_transmit_bytes_per_second", "nvlink_receive_bytes_per_second"),
    )
)
"""What stops together."""
_BUSY = 0.5
"""Utilisation over which some engine must have been active."""
_POWER_SHARE = 0.3
"""Of the limit: idle GPUs with a context draw up to a fifth (140 of 700 W on recorded H100s)."""
_POWER_WATTS = 200.0
"""The same where the page has no limit, as by default. Above what any GPU draws idle, so that small ones (T4: 70 W at
most) are not judged by power there."""


def silent_counters(values: Mapping[str, float]) -> tuple[str, str] | None:
    """Why the zeros of the profiling counters are none: code and line of a finding. None where they may be true.

    Args:
        values: of one GPU, by metric; with MIG the highest of its instances. What is missing contradicts nothing.
    """
    counters = {name: values[name] for name in (*_ENGINE, *_PIPES) if name in values}
    if not counters or any(counters.values()):
        return None
    busy, power = values.get(GPU + "utilization_ratio"), values.get(GPU + "power_watts")
    limit = values.get(GPU + "power_limit_watts")
    draws = power is not None and power >= (_POWER_SHARE * limit if limit else _POWER_WATTS)
    rests = power is not None and limit is not None and not draws
    has_engine = any(name in counters for name in _ENGINE)  # a kernel that spins moves neither tensor cores nor memory
    works = busy is None or busy >= _BUSY
    facts = [f"{busy:.0%} utilisation"] if busy is not None else []
    facts += [f"{power:.0f} W"] if power is not None else []
    zeros = f"all profiling counters are 0 at {' and '.join(facts)}"
    if draws and works and (has_engine or busy is not None):
        return "profiling_silent", f"{zeros}: they are not counting; restart nv-hostengine"
    if busy is not None and works and has_engine and not rests:
        what_next = "either they are not counting (restart nv-hostengine) or the utilisation is stuck (reset the GPU)"
        return "profiling_or_utilization_wrong", f"{zeros}: {what_next}"
    return None
