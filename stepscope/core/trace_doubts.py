"""What makes the numbers of an analysis doubtful, in words?"""

from __future__ import annotations

from stepscope.core.analysis import Job, TraceQuality
from stepscope.core.counting import counted, form
from stepscope.core.words import count, milliseconds, percent, ranks_words

NOTABLE_SHARE = 0.01
"""Unlinked activities or unmatched collectives beyond this are named: they move a share by as much."""

NOTABLE_ACTIVITY = 0.5
"""Share of a window of several steps that no single kernel or copy can take: what repeats takes at most its step."""

NOTABLE_DISTORTION = 0.10
"""Beyond this the profiler itself slows the step; host-side shares are then upper bounds."""


def find_problems(job: Job, quality: TraceQuality) -> list[str]:
    """What is notable, each as a sentence."""
    return [*_missing_data(job, quality), *_doubtful_data(job, quality)]


def clean_words(quality: TraceQuality) -> str:
    """What a clean trace offers."""
    parts = [f"{count(quality.steps_complete)} whole steps on every rank"]
    if quality.clock_residual_us is not None:
        parts.append(f"clocks agree within {milliseconds(quality.clock_residual_us / 1000)}")
    if quality.profiler_distortion is not None:
        parts.append(f"capturing slowed the step by {percent(max(quality.profiler_distortion, 0.0))}")
    return ", ".join(parts) + "."


def _missing_data(job: Job, quality: TraceQuality) -> list[str]:
    problems = []
    if job.missing_ranks:
        problems.append(
            f"{len(job.missing_ranks)} of {counted(job.world_size, 'rank')} "
            f"{form(len(job.missing_ranks), 'has', 'have')} no trace: {ranks_words(job.missing_ranks)}. "
            "Waiting for them cannot be told from communication."
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
            problems.append(f"{what[0].upper()}{what[1:]}: {count(number)}.")
    return problems


def _doubtful_data(job: Job, quality: TraceQuality) -> list[str]:
    problems = []
    if quality.unlinked > NOTABLE_SHARE:
        problems.append(f"{percent(quality.unlinked)} of the device's activities cannot be linked to their launch.")
    if quality.early > NOTABLE_SHARE:
        problems.append(f"{percent(quality.early)} of the device's activities start before their launch.")
    if quality.steps_without_device:
        share = percent(quality.steps_without_device)
        problems.append(f"{share} of one rank's steps have no device activity: the profiler lost them.")
    if quality.largest_activity > NOTABLE_ACTIVITY:
        share = percent(quality.largest_activity)
        problems.append(f"One device activity takes {share} of a rank's window.")
    if quality.unmatched_collectives is not None and quality.unmatched_collectives > NOTABLE_SHARE:
        share = percent(quality.unmatched_collectives)
        problems.append(f"{share} of the communication calls have no counterpart on the other ranks.")
    if quality.collective_args is not None and quality.collective_args < 1 - NOTABLE_SHARE:
        share = percent(1 - quality.collective_args)
        problems.append(f"{share} of the communication kernels do not record what they do (torch older than 2.4?).")
    if quality.profiler_distortion is not None and quality.profiler_distortion > NOTABLE_DISTORTION:
        problems.append(
            f"Capturing slowed the step by {percent(quality.profiler_distortion)}: "
            "take host-side shares as upper bounds."
        )
    if job.simulated_compute:
        problems.append("Simulated compute: the layers sleep instead of computing, so only the pattern is real.")
    return problems
