"""Do the profiling counters count, or are they 0 because they stopped? And is a utilisation one, or is it stuck?

`silent_counters` says when zeros cannot be true. A utilisation of 100 % that sticks to a GPU at rest is known of
Blackwell's firmware.

The values of a page are of one moment, and its zeros must not be read for idleness even once; `contradictions` watches
what several sources say over time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.collectors.silent_counters import SILENT, zeros_of
from stepscope.core.gpu_metrics import GPU, PROFILING_METRICS

RESTART = "restart nv-hostengine"
"""What is to be done where the counters of a page do not count."""
_BUSY_METRIC = GPU + "utilization_ratio"


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
    zeros = zeros_of(values)
    if zeros is None or not zeros.may_work:
        return None
    if zeros.are_silent:
        return Contradiction(SILENT, zeros.silence, RESTART, PROFILING_METRICS)
    if zeros.busy_ratio is None or zeros.draws:
        return None
    rests = zeros.power_watts is not None and zeros.limit_watts is not None
    if rests or zeros.others_count:
        of_limit = f" of {zeros.limit_watts:.0f} W" if rests else ""
        message = f"{zeros.sentence}{of_limit}: the GPU rests, the utilisation is stuck"
        return Contradiction("utilization_stuck", message, "reset the GPU", frozenset({_BUSY_METRIC}))
    message = f"{zeros.sentence}: either they are not counting or the utilisation is stuck"
    advice = f"{RESTART}, and reset the GPU where that changes nothing"
    return Contradiction("profiling_or_utilization_wrong", message, advice, PROFILING_METRICS | {_BUSY_METRIC})
