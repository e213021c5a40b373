"""Text of a job's time: its headline, its breakdown by category, and the parts of its wall-clock time.

Shares are of the training time of all steps, or of the profiled steps where those are all that is known.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stepscope.core.documents.analysis import CAUSE_OF_PART, Analysis, JobTime
from stepscope.core.text import numbers
from stepscope.core.text.goodput import run_goodput
from stepscope.core.text.wording import SHOWN_FROM, device_words, is_on_cpu, mesh_words, training_category_title
from stepscope.core.vocabulary import Cause


@dataclass(frozen=True, slots=True)
class BreakdownRow:
    """One category of a job's time; `ms` is its part of the mean step, `ranks` those whose doing it is."""

    title: str
    cause: Cause | None
    share: float
    ms: float | None
    ranks: list[int] = field(default_factory=list)


def headline(analysis: Analysis) -> str:
    """Text: the analysed job in one line: ranks, layout, device, steps and their mean, MFU."""
    job, time = analysis.job, analysis.job_time
    if not job.ranks:  # dumps alone
        layout = mesh_words(job.mesh) if job.world_size > 1 else ""
        return ", ".join(filter(None, [numbers.counted(job.world_size, "rank"), layout, "no recorded step"]))
    missing = "" if len(job.ranks) == job.world_size else f"{len(job.ranks)} of "
    parts = [f"{missing}{numbers.counted(job.world_size, 'rank')}"]
    parts += [layout] if job.world_size > 1 and (layout := mesh_words(job.mesh)) else []
    parts.append(device_words(job))
    profiled = numbers.counted(job.num_steps, "profiled step")
    step_ms = mean_step_ms(analysis)
    if of_training_time(time):
        median = "" if time is None else f" (median {time.median_step_ms:,.1f})"
        steps = "" if time is None else numbers.counted(time.num_steps, "step")
        parts += [f"{steps} of {step_ms:,.1f} ms{median}", f"{job.num_steps or 'none'} of them in an analysed trace"]
    else:
        parts.append(profiled if step_ms is None else f"{profiled} of {step_ms:,.1f} ms")
    if job.mfu is not None:
        hfu = "" if job.hfu is None or f"{job.hfu:.1%}" == f"{job.mfu:.1%}" else f", HFU {job.hfu:.1%}"
        parts[-1] += f" (MFU {job.mfu:.1%}{hfu})"
    return ", ".join(parts)


def of_training_time(time: JobTime | None) -> bool:
    """Whether shares are of the training time of all steps, not of the profiled ones alone."""
    return time is not None and "telemetry" in time.basis.split("+")


def time_name(analysis: Analysis) -> str:
    """Text: what the shares of a verdict are shares of: 'training time' or 'profiled time'."""
    return "training time" if of_training_time(analysis.job_time) else "profiled time"


def mean_step_ms(analysis: Analysis) -> float | None:
    """The step that the milliseconds of a verdict are part of."""
    return analysis.job.step_ms if analysis.job_time is None else analysis.job_time.mean_step_ms


def breakdown(analysis: Analysis) -> list[BreakdownRow]:
    """The job's time by category, the largest first."""
    time = analysis.job_time
    shares = {row.cause.value: row.fraction for row in analysis.root_causes} if time is None else time.breakdown
    ranks = {} if of_training_time(time) else {row.cause.value: row.ranks for row in analysis.root_causes}
    rows = [_row(analysis, name, share, ranks.get(name, [])) for name, share in shares.items() if share >= SHOWN_FROM]
    return sorted(rows, key=lambda row: -row.share)


def goodput_line(analysis: Analysis) -> str | None:
    """Text: what a run's GPU-time went to, in one line; None from traces alone."""
    time = analysis.job_time
    if time is None or time.goodput is None or not time.wall_ms:
        return None
    if time.gpu_time is not None and time.rank_seconds:
        return run_goodput(time.gpu_time, time.rank_seconds, on_gpu=not is_on_cpu(analysis.job))
    goodput = time.goodput  # by a version that knew the wall-clock time alone
    parts = {
        "training": goodput.training,
        "start-up": goodput.start_up,
        "profiling": goodput.profiling,
        "lost steps": goodput.lost_steps,
        "restarts": goodput.restarts,
        "after the last step": goodput.tail,
    }
    shown = [f"{name} {ms / time.wall_ms:.1%}" for name, ms in parts.items() if ms / time.wall_ms >= SHOWN_FROM]
    return f"Wall-clock time {time.wall_ms / 1e3:,.1f} s: {', '.join(shown)}"


def _row(analysis: Analysis, name: str, share: float, ranks: list[int]) -> BreakdownRow:
    cause = CAUSE_OF_PART.get(name) or (Cause(name) if name in frozenset(Cause) else None)
    return BreakdownRow(training_category_title(name, analysis.job), cause, share, ms_per_step(analysis, share), ranks)


def ms_per_step(analysis: Analysis, share: float) -> float | None:
    """Milliseconds of the mean step that are a share of the job's time; None where its length is unknown."""
    step_ms = mean_step_ms(analysis)
    return None if step_ms is None else share * step_ms
