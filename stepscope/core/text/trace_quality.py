"""Text of trace quality: what was repaired, linked and left out, and problems of the data in a sentence each."""

from __future__ import annotations

from stepscope.core.documents.analysis import AnalysedJob, TraceQuality
from stepscope.core.text import numbers
from stepscope.core.text.wording import SHOWN_FROM

_MAX_STEPS_SHOWN = 8


def quality_lines(quality: TraceQuality) -> dict[str, str]:
    """Trace quality by topic (read, linked, steps, clocks); only topics with something to say."""
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
    parts = [f"{numbers.counted(number, what)} {how}" for number, what, how in counts if number]
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
        parts.append(f"{numbers.counted(quality.lost_at_start, 'launch')} before the profiler recorded the device")
    if quality.collective_args is not None:
        parts.append(f"{quality.collective_args:.0%} of communication described")
    return parts


LEFT_OUT_SHOWN_FROM_MS = 1.0
"""Less time before and after a window is not shown: the profiler begins and ends there."""


def _steps(quality: TraceQuality) -> list[str]:
    parts = ["none marked: the whole trace is one window"]
    if quality.steps_marked:
        parts = [f"{_listed(quality.steps_used)} attributed on every rank, {len(quality.steps_marked)} marked"]
    if quality.steps_without_device:
        parts.append(f"{quality.steps_without_device:.0%} of one rank's without device activity")
    if quality.merged_boundaries:
        parts.append(f"{numbers.counted(quality.merged_boundaries, 'boundary')} merged")
    if quality.largest_activity >= NOTABLE_ACTIVITY:
        parts.append(f"one activity takes {quality.largest_activity:.0%} of the window")
    left_out = (
        (quality.left_out_before_ms, "before the first kernel"),
        (quality.left_out_after_ms, "after the last activity"),
    )
    parts += [f"{ms:,.1f} ms {where} left out" for ms, where in left_out if ms >= LEFT_OUT_SHOWN_FROM_MS]
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
    shown = ", ".join(map(str, steps[:_MAX_STEPS_SHOWN]))
    return f"{shown}, ... {steps[-1]}" if len(steps) > _MAX_STEPS_SHOWN else shown


NOTABLE_SHARE = 0.01
"""Share of unlinked activities or unmatched collectives from which they are reported: results change by as much."""

NOTABLE_ACTIVITY = 0.5
"""Share of a window of several steps that no single kernel or copy can plausibly take, as each belongs to one step."""

NOTABLE_DISTORTION = 0.10
"""Slowdown by the profiler from which CPU-side shares are only upper bounds."""


def find_problems(job: AnalysedJob, quality: TraceQuality) -> list[str]:
    """Text: wording of the problems of the input data for a reader, one sentence each."""
    return [*_missing_data(job, quality), *_doubtful_data(job, quality)]


def clean_words(quality: TraceQuality) -> str:
    """Trace quality as text where there are no problems: one sentence."""
    parts = [f"{numbers.count(quality.steps_complete)} whole steps on every rank"]
    if quality.clock_residual_us is not None:
        parts.append(f"clocks agree within {numbers.milliseconds(quality.clock_residual_us / 1000)}")
    if quality.profiler_distortion is not None:
        parts.append(f"profiling slowed the step by {numbers.percent(max(quality.profiler_distortion, 0.0))}")
    return ", ".join(parts) + "."


def _missing_data(job: AnalysedJob, quality: TraceQuality) -> list[str]:
    problems = []
    if job.missing_ranks:
        problems.append(
            f"{len(job.missing_ranks)} of {numbers.counted(job.world_size, 'rank')} "
            f"{numbers.form(len(job.missing_ranks), 'has', 'have')} no trace: "
            f"{numbers.ranks_words(job.missing_ranks)}. Waiting for them cannot be told from communication."
        )
    if quality.steps_complete == 0:
        problems.append("No step is seen whole on every rank: the figures are of the whole trace.")
    for number, what in (
        (quality.truncated_files, "trace files that end too early (a killed process, a full disk)"),
        (quality.dropped, "events that could not be read and are left out"),
        (quality.repaired, "events whose text was damaged and is mended"),
        (quality.clipped, "kernels that overlapped on their own stream and are cut"),
        (quality.merged_boundaries, "step boundaries that did not increase and are merged"),
    ):
        if number:
            problems.append(f"{what[0].upper()}{what[1:]}: {numbers.count(number)}.")
    return problems


def _doubtful_data(job: AnalysedJob, quality: TraceQuality) -> list[str]:
    problems = []
    if quality.unlinked > NOTABLE_SHARE:
        problems.append(
            f"{numbers.percent(quality.unlinked)} of the device's activities cannot be linked to their launch."
        )
    if quality.early > NOTABLE_SHARE:
        problems.append(f"{numbers.percent(quality.early)} of the device's activities start before their launch.")
    if quality.steps_without_device:
        share = numbers.percent(quality.steps_without_device)
        problems.append(f"{share} of one rank's steps have no device activity: the profiler lost them.")
    if quality.largest_activity > NOTABLE_ACTIVITY:
        share = numbers.percent(quality.largest_activity)
        problems.append(f"One device activity takes {share} of a rank's window.")
    if quality.unmatched_collectives is not None and quality.unmatched_collectives > NOTABLE_SHARE:
        share = numbers.percent(quality.unmatched_collectives)
        problems.append(f"{share} of the communication calls have no counterpart on the other ranks.")
    if quality.collective_args is not None and quality.collective_args < 1 - NOTABLE_SHARE:
        share = numbers.percent(1 - quality.collective_args)
        problems.append(f"{share} of the communication kernels do not record what they do (torch older than 2.4?).")
    if quality.profiler_distortion is not None and quality.profiler_distortion > NOTABLE_DISTORTION:
        problems.append(
            f"Profiling slowed the step by {numbers.percent(quality.profiler_distortion)}: "
            "take CPU-side shares as upper bounds."
        )
    if job.simulated_compute:
        problems.append("Simulated compute: the layers sleep instead of computing, so only the pattern is real.")
    return problems
