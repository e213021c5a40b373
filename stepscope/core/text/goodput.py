"""Text of a job's goodput: its headline, the classes of its GPU-time, its restarts, its checkpoints."""

from __future__ import annotations

from stepscope.core.documents.goodput import (
    AttemptGoodput,
    CheckpointAdvice,
    CheckpointCost,
    ClusterGoodput,
    JobGoodput,
)
from stepscope.core.text.numbers import UNKNOWN, bandwidth, counted, listed, milliseconds, percent, size
from stepscope.core.text.wording import SHOWN_FROM
from stepscope.core.vocabulary import GoodputClass


def class_words(kind: GoodputClass) -> str:
    """Words of a class of GPU-time inside a sentence: 'lost steps'."""
    return {GoodputClass.START_UP: "start-up", GoodputClass.NO_ATTEMPT: "no attempt running"}.get(
        kind, kind.value.replace("_", " ")
    )


def rank_time(rank_seconds: float, *, on_gpu: bool) -> str:
    """GPU-time as text: '3.4 GPU-hours'; of a job without GPUs rank-hours."""
    unit = "GPU" if on_gpu else "rank"
    if rank_seconds < _MINUTES_BELOW_SECONDS:
        return f"{rank_seconds / 60:,.1f} {unit}-minutes"
    return f"{rank_seconds / 3600:,.1f} {unit}-hours"


_MINUTES_BELOW_SECONDS = 3600.0


def duration(seconds: float | None) -> str:
    """A duration in seconds as text: '4.1 s', '12.0 min', '5.1 h'."""
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        return milliseconds(1000 * seconds)
    if seconds < 120:
        return f"{seconds:,.1f} s"
    return f"{seconds / 60:,.1f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def goodput_headline(job: JobGoodput) -> str:
    """Text: a job's goodput in one line."""
    sizes = listed(job.world_sizes)
    ranks = f"{sizes} {'rank' if job.world_sizes == [1] else 'ranks'}"
    time = rank_time(job.rank_seconds, on_gpu=job.device_kind == "gpu")
    what = f"{ranks}, {counted(len(job.attempts), 'attempt')}, {duration(job.wall_seconds)}"
    return f"GOODPUT  {percent(job.goodput)} of {time} are productive training ({job.job}: {what})"


def loss_words(time: dict[GoodputClass, float], most: int | None = None) -> str:
    """Text: the shares of all classes but productive training, the largest first, at most so many."""
    shares = {kind: share for kind, share in time.items() if kind is not GoodputClass.PRODUCTIVE_TRAINING}
    shown = sorted((kind for kind in shares if shares[kind] >= SHOWN_FROM), key=lambda kind: -shares[kind])[:most]
    return ", ".join(f"{class_words(kind)} {percent(shares[kind])}" for kind in shown) or "none above 0.05%"


def run_goodput(time: dict[GoodputClass, float], rank_seconds: float, *, on_gpu: bool) -> str:
    """Text: the goodput of a run in one line, for its analysis."""
    productive = percent(time.get(GoodputClass.PRODUCTIVE_TRAINING, 0.0))
    return f"Goodput {productive} of {rank_time(rank_seconds, on_gpu=on_gpu)}; lost: {loss_words(time)}"


def total_headline(total: ClusterGoodput, *, on_gpu: bool) -> str:
    """Text: all jobs together in one line."""
    jobs, attempts = counted(total.num_jobs, "job"), counted(total.num_attempts, "attempt")
    time = rank_time(total.rank_seconds, on_gpu=on_gpu)
    return f"GOODPUT  {percent(total.goodput)} of {time} are productive training ({jobs}, {attempts})"


def steps_words(job: JobGoodput) -> str:
    """Text: steps that were kept, lost and repeated."""
    if job.num_kept_steps is None or job.num_lost_steps is None:
        trained = counted(sum(attempt.num_steps for attempt in job.attempts), "step")
        return f"{trained} trained; how many were lost is not known"
    lost = f"; {job.num_lost_steps:,} lost, {job.num_repeated_steps:,} repeated" if job.num_lost_steps else ""
    return f"{counted(job.num_kept_steps, 'step')} kept{lost or '; none lost'}"


def ended_words(attempt: AttemptGoodput) -> str:
    """Text: why an attempt ended."""
    return "running or killed" if attempt.ended is None else attempt.ended


def checkpoint_words(cost: CheckpointCost) -> str:
    """Text: what checkpoints cost, and how often they are written."""
    parts = [f"{counted(cost.num_checkpoints, 'checkpoint')}, training waits {duration(cost.seconds)} for each"]
    if cost.bytes is not None:
        parts.append(f"{size(cost.bytes)} at {bandwidth(cost.gb_per_second)}")
    if cost.interval_steps is not None:
        parts.append(f"one every {counted(cost.interval_steps, 'step')} ({duration(cost.interval_seconds)})")
    return "; ".join(parts)


def advice_words(advice: CheckpointAdvice, cost: CheckpointCost | None) -> str:
    """Text: how often to write checkpoints, and from what that follows."""
    if cost is None:
        return "unknown: no checkpoint is recorded"
    if advice.num_failures == 0:
        least = "" if advice.low_seconds is None else f"; at least every {duration(advice.low_seconds)} is too often"
        return f"unknown: no failure was seen{least}"
    if advice.seconds is None:
        return "unknown: the cost of a checkpoint is not known"
    steps = "" if advice.steps is None else f"{counted(advice.steps, 'step')}, "
    low, high = duration(advice.low_seconds), duration(advice.high_seconds)
    failures = counted(advice.num_failures, "failure")
    between = duration(advice.seconds_between_failures)
    return (
        f"one every {steps}{duration(advice.seconds)} of training (90% interval {low} to {high}): {failures}, "
        f"one every {between}; {duration(cost.seconds)} a checkpoint (Daly)"
    )
