"""Do the profiling counters count, or are they 0 because they stopped? And is a utilisation one, or is it stuck?

DCGM exports 0 for all of them after an XID 31, or after weeks, with no word about it (NVIDIA/DCGM#303,
NVIDIA/dcgm-exporter#662). A GPU whose engine was never active was not busy, so that one of the two is wrong: power
tells which. A utilisation of 100 % that sticks to a GPU at rest is known of Blackwell's firmware.

The values of a page are of one moment, and its zeros must not be read for idleness even once; `contradictions` watches
what several sources say over time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.core.gpu_metrics import GPU, PROFILING_METRICS

_ENGINE = (GPU + "graphics_engine_active_ratio", GPU + "sm_active_ratio")
_PIPES = (GPU + "tensor_active_ratio", GPU + "dram_active_ratio")
_BUSY_METRIC = GPU + "utilization_ratio"
_BUSY = 0.5
"""Utilisation over which some engine must have been active."""
_POWER_SHARE = 0.3
"""Of the limit: idle GPUs with a context draw up to a fifth (140 of 700 W on recorded H100s)."""
_POWER_WATTS = 200.0
"""The same where the page has no limit, as by default. Above what any GPU draws idle, so that small ones (T4: 70 W at
most) are not judged by power there."""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two values that cannot both be.

    Attributes:
        code, message: of the finding.
        advice: what is to be done, beside what is missing; the event that health makes of the finding has its own.
        doubted: metrics that are not known therefore.
    """

    code: str
    message: str
    advice: str
    doubted: frozenset[str]

    @property
    def detail(self) -> str:
        """One line on what is missing therefore."""
        return f"{self.message}; {self.advice}"


def contradiction_of(values: Mapping[str, float]) -> Contradiction | None:
    """What cannot be of the zeros of the profiling counters. None where they may be true.

    Args:
        values: of one GPU, by metric; with MIG the highest of its instances. What is missing contradicts nothing.
    """
    counters = {name: values[name] for name in (*_ENGINE, *_PIPES) if name in values}
    if not counters or any(counters.values()):
        return None
    busy, power = values.get(_BUSY_METRIC), values.get(GPU + "power_watts")
    limit = values.get(GPU + "power_limit_watts")
    draws = power is not None and power >= (_POWER_SHARE * limit if limit else _POWER_WATTS)
    rests = power is not None and limit is not None and not draws
    has_engine = any(name in counters for name in _ENGINE)  # a kernel that spins moves neither tensor cores nor memory
    works = busy is None or busy >= _BUSY
    facts = [f"{busy:.0%} utilisation"] if busy is not None else []
    facts += [f"{power:.0f} W"] if power is not None else []
    zeros = f"all profiling counters are 0 at {' and '.join(facts)}"
    if draws and works and (has_engine or busy is not None):
        message = f"{zeros}: they are not counting"
        return Contradiction("profiling_silent", message, "restart nv-hostengine", PROFILING_METRICS)
    if busy is None or not works or not has_engine:
        return None
    if rests:
        message = f"{zeros} of {limit:.0f} W: the GPU rests, the utilisation is stuck"
        return Contradiction("utilization_stuck", message, "reset the GPU", frozenset({_BUSY_METRIC}))
    message = f"{zeros}: either they are not counting or the utilisation is stuck"
    advice = "restart nv-hostengine, and reset the GPU where that changes nothing"
    return Contradiction("profiling_or_utilization_wrong", message, advice, PROFILING_METRICS | {_BUSY_METRIC})
