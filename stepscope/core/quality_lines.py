"""How far can the traces be trusted? The block that stands before any number."""

from __future__ import annotations

from stepscope.core.analysis import TraceQuality
from stepscope.core.counting import counted
from stepscope.core.trace_doubts import NOTABLE_ACTIVITY

SHOWN_FROM = 0.0005
"""Shares below this are left out of the report (they round to 0.0 %)."""
_MOST_STEPS_SHOWN = 8


def quality_lines(quality: TraceQuality) -> dict[str, str]:
    """One line a question: what was mended, what could be linked, which steps are booked, what the clocks allow."""
    lines = {
        "read": _reading(quality),
        "linked": _linking(quality),
        "steps": _steps(quality),
        "clocks": _clocks(quality),
    }
    return {name: ", ".join(parts) for name, parts in lines.items() if parts}


def _reading(quality: TraceQuality) -> list[str]:
    counts = (
        (quality.repaired, "event", "repaired"),
        (quality.dropped, "event", "dropped"),
        (quality.clipped, "activity", f"clipped (by {quality.clipped_us:,.0f} us)"),
        (quality.truncated_files, "file", "truncated"),
    )
    parts = [f"{counted(number, what)} {how}" for number, what, how in counts if number]
    return parts or ["nothing repaired, nothing dropped"]


def _linking(quality: TraceQuality) -> list[str]:
    shares = (
        (quality.unlinked, "of device activities without launch"),
        (quality.early, "of device activities before their launch"),
        (quality.lost_launches, "of launches without device activity"),
        (quality.graph_share, "of kernels from graphs"),
        (quality.unmatched_collectives or 0.0, "of communication calls unmatched"),
    )
    parts = [f"{share:.1%} {name}" for share, name in shares if share >= SHOWN_FROM]
    if quality.lost_at_start:
        parts.append(f"{counted(quality.lost_at_start, 'launch')} before the profiler recorded the device")
    if quality.collective_args is not None:
        parts.append(f"{quality.collective_args:.0%} of communication described")
    return parts


def _steps(quality: TraceQuality) -> list[str]:
    if not quality.steps_marked:
        return ["none marked: the whole trace is booked"]
    parts = [f"{_listed(quality.steps_used)} booked on every rank, {len(quality.steps_marked)} marked"]
    if quality.steps_without_device:
        parts.append(f"{quality.steps_without_device:.0%} of one rank's without device activity")
    if quality.merged_boundaries:
        parts.append(f"{counted(quality.merged_boundaries, 'boundary')} merged")
    if quality.largest_activity >= NOTABLE_ACTIVITY:
        parts.append(f"one activity takes {quality.largest_activity:.0%} of the window")
    return parts


def _clocks(quality: TraceQuality) -> list[str]:
    parts = []
    if quality.clock_residual_us is not None:
        parts.append(f"agree within {quality.clock_residual_us:.0f} us")
    if quality.profiler_distortion is not None and quality.profiler_distortion > 0:
        parts.append(f"profiler {quality.profiler_distortion:+.0%} step time")
    return parts


def _listed(steps: list[int]) -> str:
    if not steps:
        return "none"
    shown = ", ".join(map(str, steps[:_MOST_STEPS_SHOWN]))
    return f"{shown}, ... {steps[-1]}" if len(steps) > _MOST_STEPS_SHOWN else shown
