"""Of what must the reader of an analysis be warned: of its input, of the profiler, of what the figures cannot be?"""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.step_likeness import unlike_steps_ms
from stepscope.analyzer.summaries import JobContext, hfu_of
from stepscope.core.analysis import Job, Notice, TraceQuality
from stepscope.core.counting import counted, form
from stepscope.core.listing import listed
from stepscope.core.trace_doubts import NOTABLE_ACTIVITY, NOTABLE_DISTORTION

LOSS_WORTH_SAYING = 0.02
"""Share of lost launches, and of activities before their launch, from which a reader is told."""


def notices_of(
    views: Mapping[int, RankView], job: Job, quality: TraceQuality, context: JobContext, *, oversubscribed: bool
) -> list[Notice]:
    """All of them, those about the input first."""
    notices = [*context.notices]
    for view in views.values():
        notices += [notice for notice in view.notices if notice not in notices]
    if job.missing_ranks:
        missing = (
            f"no trace of {len(job.missing_ranks)} of {counted(job.world_size, 'rank')} ({listed(job.missing_ranks)})"
        )
        notices.append(Notice("missing_ranks", missing))
    if quality.profiler_distortion is not None and quality.profiler_distortion > NOTABLE_DISTORTION:
        slowed = f"capturing slowed the step by {quality.profiler_distortion:.0%}: host-side headings are upper bounds"
        notices.append(Notice("profiler_distortion", slowed))
    unlike = unlike_steps_ms(views)
    if unlike is not None:
        differ = (
            f"captured steps take {unlike[0]:,.1f} to {unlike[1]:,.1f} ms: shares and gains are of these steps, "
            "and what capturing adds to them is not known"
        )
        notices.append(Notice("unlike_steps", differ))
    hfu = hfu_of(views, job.step_ms)
    if hfu is not None and hfu > 1.0:
        wrong = f"HFU would be {hfu:.0%}: the peak assumed for this GPU, its clock or the FLOP model is wrong"
        notices.append(Notice("impossible_mfu", wrong))
    if quality.lost_launches > LOSS_WORTH_SAYING:
        lost = (
            f"{quality.lost_launches:.0%} of one rank's launches have no device activity: its idle time is overstated"
        )
        notices.append(Notice("lost_launches", lost))
    notices += _doubts(views, job, quality)
    if quality.unmatched_collectives:
        unmatched = f"{quality.unmatched_collectives:.1%} of the communication calls have no match"
        notices.append(Notice("unmatched_collectives", unmatched))
    if oversubscribed:
        queue = f"more ranks than the {counted(context.num_cpus or 0, 'core')}: waits also measure the queue for a core"
        notices.append(Notice("oversubscribed", queue))
    return notices


def _doubts(views: Mapping[int, RankView], job: Job, quality: TraceQuality) -> list[Notice]:
    """What the traces themselves make doubtful."""
    found: list[tuple[str, str]] = []
    if quality.early > LOSS_WORTH_SAYING:
        early = f"{quality.early:.0%} of the device activities start before their launch"
        found.append(("early_kernels", f"{early}: the device's clock is off, or records are mixed up"))
    for rank, view in views.items():
        facts = view.facts
        if facts.empty_steps:
            lost = (
                f"rank {rank}: {len(facts.empty_steps)} of {counted(len(facts.step_indices), 'step')} "
                f"{form(len(facts.empty_steps), 'has', 'have')} no device activity"
            )
            found.append(("empty_steps", f"{lost} ({listed(facts.empty_steps)})"))
        if facts.largest_share > NOTABLE_ACTIVITY:
            large = f"rank {rank}: {facts.largest_name[:80]!r} takes {facts.largest_share:.0%} of the time"
            found.append(("large_activity", large))
        if facts.untraced_iterations:
            loops = f"rank {rank}: a graph ran longer than its recorded kernels"
            found.append(("graph_loops", f"{loops}: of a while node only the first iteration is traced"))
    if job.world_size > 1 and not any(view.calls for view in views.values()):
        found.append(("no_communication", f"{job.world_size} ranks, but no communication is found in the traces"))
    return [Notice(code, message) for code, message in found]
