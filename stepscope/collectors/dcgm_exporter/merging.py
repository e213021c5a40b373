"""Which one value has a metric, where a page tells it several times?

Lines are repeated for each job of a GPU (hpc_job), each pod of a time-sliced GPU and each MIG instance, mostly with the
value of the whole GPU: adding them up would count it many times (NVIDIA/dcgm-exporter#587, #638, #642).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.collectors.dcgm_exporter.entities import NO_WORKLOAD, Workload
from stepscope.core.readings import MissingReason


@dataclass(frozen=True, slots=True)
class Told:
    """One line's value.

    Attributes:
        value: in base units, or why there is none.
        workload: whose.
        is_direct: the line is of the very thing, not of a part of it.
        time_ns: the line's own time; None without.
    """

    value: float | tuple[MissingReason, str]
    workload: Workload
    is_direct: bool = True
    time_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Merged:
    """What all lines together say.

    Attributes:
        value: the one value, or why there is none.
        time_ns: as of the line.
        shares: each workload's own value, where the lines tell one beside that of the whole.
    """

    value: float | tuple[MissingReason, str]
    time_ns: int | None
    shares: tuple[tuple[Workload, float], ...] = ()


def merge(told: Sequence[Told]) -> Merged:
    """One value of several lines about the same thing, at least one."""
    known = [(one.value, one) for one in told if not isinstance(one.value, tuple)]
    known = [pair for pair in known if pair[1].is_direct] or known
    if not known:
        return Merged(told[0].value, told[0].time_ns)
    plain = [pair for pair in known if pair[1].workload == NO_WORKLOAD]
    chosen = plain or known
    values = sorted({value for value, _ in chosen})
    time_ns = chosen[0][1].time_ns
    if len(values) > 1:
        words = ", ".join(f"{value:g}" for value in values[:3])
        return Merged((MissingReason.UNREADABLE, f"the page has {len(values)} values for it: {words}"), time_ns)
    shares = tuple((one.workload, value) for value, one in known if plain and one.workload != NO_WORKLOAD)
    return Merged(values[0], time_ns, shares)
