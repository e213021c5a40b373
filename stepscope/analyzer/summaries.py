"""Summary sections of an analysis: job, trace quality, time breakdown, roofline, warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from stepscope.analyzer.collectives.calls import CallId, Matches
from stepscope.analyzer.collectives.clocks import Clocks
from stepscope.analyzer.collectives.process_groups import dimension_of_members, mesh_sizes_by_traffic
from stepscope.analyzer.job_time.job_verdict import RunFacts
from stepscope.analyzer.ledger.unrecorded_work import Missing
from stepscope.analyzer.missing_evidence import NOTABLE_SHARE, MissingEvidence
from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.slow_settings import SlowSetting
from stepscope.core.documents import analysis
from stepscope.core.documents.run_directory import RankTimeline
from stepscope.core.documents.training_settings import TrainingSettings
from stepscope.core.text.numbers import counted, form, listed
from stepscope.core.text.trace_quality import NOTABLE_ACTIVITY, NOTABLE_DISTORTION
from stepscope.core.vocabulary import Notice


@dataclass(frozen=True, slots=True)
class JobContext:
    """Facts on the job that are not in its traces; None and empty where unknown.

    Attributes:
        unprofiled_step_ms: the step without profiling.
        mesh: sizes by dimension.
        num_cpus: processors that the ranks of a host share.
        simulated_compute: layers sleep instead of computing.
        truncated_files: traces left out because they end too early.
        data_waits_ns: by rank, wait of each step for its data, from the run's telemetry.
        network_bytes_per_second: of each GPU's network card in one direction.
        run: what the run directory tells of all steps; None from traces alone.
        settings: of the run, as rank 0 read them last.
        slow_settings: those that slow it down.
        cpu_affinity: the processors that rank 0 may use ("0-3,8"); empty where unknown.
        unrecorded: views of ranks whose traces hold no device activities, though those of others do.
    """

    unprofiled_step_ms: float | None = None
    mesh: analysis.MeshSizes = field(default_factory=analysis.MeshSizes)
    num_cpus: int | None = None
    simulated_compute: bool = False
    truncated_files: int = 0
    notices: tuple[Notice, ...] = ()
    data_waits_ns: Mapping[int, Sequence[int]] = field(default_factory=dict)
    network_bytes_per_second: float | None = None
    run: RunFacts | None = None
    unrecorded: Sequence[RankView] = ()
    settings: TrainingSettings | None = None
    slow_settings: Sequence[SlowSetting] = ()
    cpu_affinity: str = ""


def world_size_of(views: Mapping[int, RankView]) -> int:
    """Ranks of the job by the traces, at least the largest rank + 1."""
    recorded = max((view.header.world_size or 0 for view in views.values()), default=0)
    return max(recorded, max(views) + 1)


MIN_COSTED_SHARE = 0.5
"""Least share of kernel time with known cost: with less a sum of FLOPs is that of a few operators."""


def describe_job(views: Mapping[int, RankView], context: JobContext) -> analysis.AnalysedJob:
    """The job section; views by rank, on the job's clock."""
    world_size = world_size_of(views)
    steps = [float(np.mean(view.window.whole_step_ns)) / 1e6 for view in views.values()]
    step_ms = float(np.median(steps)) if steps else None
    mfu = _utilization(views, lambda view: view.step_flops, step_ms)
    hfu = _utilization(views, lambda view: view.executed_flops, step_ms)
    first = next(iter(views.values()))
    return analysis.AnalysedJob(
        world_size=world_size,
        ranks=list(views),
        missing_ranks=[rank for rank in range(world_size) if rank not in views],
        mesh=_mesh(views, context, world_size),
        gpu=next((device.name for device in first.header.devices), None) if first.on_device else None,
        num_steps=min(len(view.window.boundary_ns) for view in views.values()),
        step_ms=step_ms,
        unprofiled_step_ms=context.unprofiled_step_ms,
        mfu=mfu if mfu is not None and mfu <= 1.0 else None,
        hfu=hfu if hfu is not None and hfu <= 1.0 else None,
        device_kind="gpu" if first.on_device else "cpu",
        simulated_compute=context.simulated_compute,
    )


def _utilization(
    views: Mapping[int, RankView], flops_of: Callable[[RankView], float | None], step_ms: float | None
) -> float | None:
    """FLOPs of a step / FLOPs at peak, mean over ranks.

    Above 1 where the peak is wrong; None where FLOPs, peak or step are unknown.
    """
    costed = [view for view in views.values() if view.coverage.costed >= MIN_COSTED_SHARE]
    shares = [flops / view.peak_flops for view in costed if (flops := flops_of(view)) and view.peak_flops]
    return float(np.mean(shares)) / (step_ms / 1e3) if shares and step_ms else None


def _mesh(views: Mapping[int, RankView], context: JobContext, world_size: int) -> analysis.MeshSizes:
    """Sizes from the run, else from the descriptions of process groups and the dimensions of calls."""
    if context.mesh != analysis.MeshSizes():
        return context.mesh
    sizes: dict[str, int] = {}
    for view in views.values():
        for members, dimension in dimension_of_members(view.header.groups).items():
            sizes[dimension] = max(sizes.get(dimension, 1), len(members))
    by_traffic = mesh_sizes_by_traffic(call for view in views.values() for call in view.calls)
    for dimension in ("tp", "dp", "pp", "ep", "cp"):
        size = by_traffic.get(dimension)
        # experts and sequences are split inside other dimensions; the others multiply to at most the world size
        fits = (
            dimension in ("ep", "cp") or prod(sizes.get(d, 1) for d in ("tp", "dp", "pp")) * (size or 0) <= world_size
        )
        if size is not None and fits:
            sizes.setdefault(dimension, size)
    return analysis.MeshSizes(**sizes)


def trace_quality(
    views: Mapping[int, RankView], matches: Matches, clocks: Clocks, job: analysis.AnalysedJob, context: JobContext
) -> analysis.TraceQuality:
    """The quality section: sums over all ranks; some shares are those of the worst rank."""
    facts = [view.facts for view in views.values()]
    in_window = {
        CallId(rank, place): call
        for rank, view in views.items()
        for place, call in enumerate(view.calls)
        if call.end_ns > view.window.start_ns
    }
    calls = list(in_window.values())
    activities = sum(f.num_activities for f in facts)
    linked = activities - sum(f.num_unlinked for f in facts)
    kernels = sum(f.num_kernels for f in facts)
    matchable = in_window.keys() - set(matches.incomplete)
    distortion = None
    unprofiled_ms = comparable_step_ms(views, job.unprofiled_step_ms)
    if unprofiled_ms and job.step_ms:
        distortion = job.step_ms / unprofiled_ms - 1.0
    return analysis.TraceQuality(
        repaired=sum(f.reading.repaired for f in facts),
        dropped=sum(f.reading.dropped for f in facts),
        clipped=sum(f.reading.clipped for f in facts),
        truncated_files=context.truncated_files,
        lost_launches=max((f.lost_launches for f in facts), default=0.0),
        unlinked=sum(f.num_unlinked for f in facts) / activities if activities else 0.0,
        graph_share=sum(f.num_graph_kernels for f in facts) / kernels if kernels else 0.0,
        collective_args=sum(call.described for call in calls) / len(calls) if calls else None,
        unmatched_collectives=len(matchable & set(matches.unmatched)) / len(matchable) if matchable else None,
        steps_complete=job.num_steps,
        merged_boundaries=sum(view.window.num_merged for view in views.values()),
        clock_residual_us=clocks.residual_us,
        profiler_distortion=distortion,
        clipped_us=sum(f.reading.clipped_ns for f in facts) / 1e3,
        early=sum(f.num_early for f in facts) / linked if linked else 0.0,
        lost_at_start=sum(f.lost_at_start for f in facts),
        steps_marked=sorted({index for f in facts for index in f.step_indices}),
        steps_used=sorted(set.intersection(*(set(view.window.index.tolist()) for view in views.values()))),
        steps_without_device=max((len(f.empty_steps) / max(len(f.step_indices), 1) for f in facts), default=0.0),
        largest_activity=max((f.largest_share for f in facts), default=0.0),
        left_out_before_ms=max(view.window.before_ns for view in views.values()) / 1e6,
        left_out_after_ms=max(view.window.after_ns for view in views.values()) / 1e6,
    )


def is_oversubscribed(views: Mapping[int, RankView], context: JobContext) -> bool:
    """Analyzer, whole job: whether a traced CPU run has more runnable ranks than cores.

    Simulated compute sleeps and needs no core.
    """
    if context.num_cpus is None or context.simulated_compute or any(view.on_device for view in views.values()):
        return False
    return Counter(view.header.host_name for view in views.values()).most_common(1)[0][1] > context.num_cpus


def timeline_document(view: RankView) -> RankTimeline:
    """Timeline document of a rank, from its view."""
    return RankTimeline(
        rank=view.rank,
        start_ns=view.segments.start_ns.tolist(),
        end_ns=view.window.end_ns,
        categories=view.segments.category.tolist(),
        step_starts_ns=view.window.boundary_ns.tolist(),
        step_indices=view.window.index.tolist(),
    )


UNLIKE_STEPS_RATIO = 2.0
"""Least ratio of a rank's longest to shortest whole step for its steps to be unlike. Recorded: up to 1.4 where a fault
affects every step, 7 to 50 where it affects some."""


def unlike_steps_ms(views: Mapping[int, RankView]) -> tuple[float, float] | None:
    """Shortest and longest whole step (ms) of the rank whose steps differ most; None where all ranks' are alike.

    A checkpoint every third step, or loader workers that deliver at once, make some steps many times longer. The median
    of other steps is then not comparable, and a difference to it is not profiling overhead.
    """
    lengths = [view.window.whole_step_ns for view in views.values()]
    spans = [(float(of_rank.min()), float(of_rank.max())) for of_rank in lengths if len(of_rank)]
    shortest, longest = max(spans, key=lambda span: span[1] / max(span[0], 1.0), default=(0.0, 0.0))
    return (shortest / 1e6, longest / 1e6) if longest > UNLIKE_STEPS_RATIO * shortest else None


def comparable_step_ms(views: Mapping[int, RankView], unprofiled_step_ms: float | None) -> float | None:
    """Analyzer, whole job: the step's time without profiling, where profiled steps can be compared with it."""
    return unprofiled_step_ms if unlike_steps_ms(views) is None else None


NOTABLE_LOSS = 0.02
"""Least share of lost launches, and of activities before their launch, for a notice."""


def analysis_notices(
    views: Mapping[int, RankView],
    job: analysis.AnalysedJob,
    quality: analysis.TraceQuality,
    context: JobContext,
    missing: Sequence[MissingEvidence],
    *,
    oversubscribed: bool,
) -> list[Notice]:
    """Analyzer, whole job: collect all notices of an analysis, those about the traces first."""
    notices = [*context.notices]
    for view in views.values():
        notices += [notice for notice in view.notices if notice not in notices]
    if job.missing_ranks:
        absent = (
            f"no trace of {len(job.missing_ranks)} of {counted(job.world_size, 'rank')} ({listed(job.missing_ranks)})"
        )
        notices.append(Notice("missing_ranks", absent))
    if quality.profiler_distortion is not None and quality.profiler_distortion > NOTABLE_DISTORTION:
        slowed = f"profiling slowed the step by {quality.profiler_distortion:.0%}: CPU-side categories are upper bounds"
        notices.append(Notice("profiler_distortion", slowed))
    unlike = unlike_steps_ms(views)
    if unlike is not None:
        differ = (
            f"profiled steps take {unlike[0]:,.1f} to {unlike[1]:,.1f} ms: shares and gains are of these steps, "
            "and what profiling adds to them is not known"
        )
        notices.append(Notice("unlike_steps", differ))
    hfu = _utilization(views, lambda view: view.executed_flops, job.step_ms)
    if hfu is not None and hfu > 1.0:
        wrong = f"HFU would be {hfu:.0%}: the peak assumed for this GPU, its clock or the FLOP model is wrong"
        notices.append(Notice("impossible_mfu", wrong))
    reported = [one for one in missing if one.share >= NOTABLE_SHARE or one.kind is Missing.DEVICE]
    notices += [one.notice for one in reported]
    if quality.lost_launches > NOTABLE_LOSS and not any(one.is_of_launches for one in reported):
        lost = f"{quality.lost_launches:.0%} of one rank's kernel launches left no kernel in the trace"
        notices.append(Notice("lost_launches", lost))
    notices += _doubts(views, job, quality)
    if quality.unmatched_collectives:
        unmatched = f"{quality.unmatched_collectives:.1%} of the communication calls have no match"
        notices.append(Notice("unmatched_collectives", unmatched))
    return [*notices, oversubscribed_notice(context)] if oversubscribed else notices


def oversubscribed_notice(context: JobContext) -> Notice:
    """Notice of a job whose ranks queue for the cores of their host."""
    queue = f"more ranks than the {counted(context.num_cpus or 0, 'core')}: waits also measure the queue for a core"
    return Notice("oversubscribed", queue)


def _doubts(views: Mapping[int, RankView], job: analysis.AnalysedJob, quality: analysis.TraceQuality) -> list[Notice]:
    """Notices on doubtful traces."""
    found: list[tuple[str, str]] = []
    if quality.early > NOTABLE_LOSS:
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
