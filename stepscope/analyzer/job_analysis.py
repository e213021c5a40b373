"""Where did the job's time go, and why? The cross-rank half: views of all ranks in, the whole answer out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.analyzer.arrivals import Arrival, needed_arrivals
from stepscope.analyzer.blame import blame_waits
from stepscope.analyzer.clocks import Clocks, estimate_clocks
from stepscope.analyzer.collective_table import collective_table
from stepscope.analyzer.communication import Call
from stepscope.analyzer.host_calls import complete_together
from stepscope.analyzer.ledger import fractions
from stepscope.analyzer.matching import CallId, Matches, match_calls
from stepscope.analyzer.pipeline import PipelineParts, explain, find_chains
from stepscope.analyzer.rank_view import RankView, compute_by_step
from stepscope.analyzer.root_causes import cause_table
from stepscope.analyzer.schedule_waits import charge_schedule
from stepscope.analyzer.segments import Segments
from stepscope.analyzer.split import WaitPieces, split_communication, waits_to_blame
from stepscope.analyzer.stragglers import ComputeComparison
from stepscope.analyzer.verdict import Circumstances, judge, root_causes
from stepscope.core.analysis import (
    Analysis,
    Job,
    KernelTime,
    Ledger,
    MeshSizes,
    Notice,
    RankLedger,
    Roofline,
    RooflineCoverage,
    StepLedger,
    TraceQuality,
)
from stepscope.core.headings import Heading
from stepscope.core.timeline import HEADING_ORDER, RankTimeline

DISTORTION_WORTH_SAYING = 0.10
"""When capturing slows the step by more, host-side headings are upper bounds (ledger, Profiler distortion)."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """What is known of the job beside its traces; None and empty where it is not.

    Attributes:
        unprofiled_step_ms: the step before capturing.
        mesh: sizes by dimension.
        num_cpus: processors that the ranks of a host share.
        simulated_compute: layers sleep instead of computing.
    """

    unprofiled_step_ms: float | None = None
    mesh: MeshSizes = MeshSizes()
    num_cpus: int | None = None
    simulated_compute: bool = False
    notices: tuple[Notice, ...] = ()


def analyse_job(views: Sequence[RankView], context: JobContext) -> tuple[Analysis, list[RankTimeline]]:
    """Join the ranks: align, split waiting from transfer, charge it, and judge.

    Args:
        views: one a rank, each rank once.
        context: what is known beside the traces.

    Returns:
        The analysis, and each rank's time line on the job's clock.
    """
    by_rank = {view.rank: view for view in sorted(views, key=lambda view: view.rank)}
    by_rank, matches, clocks, arrivals = _align(by_rank)
    by_rank = {
        rank: replace(view, segments=split_communication(view.segments, rank, view.calls, arrivals))
        for rank, view in by_rank.items()
    }
    chains = find_chains({rank: view.calls for rank, view in by_rank.items()})
    pipelines = [parts for chain in chains if (parts := explain(chain, by_rank)) is not None]
    by_rank = _charge_pipelines(by_rank, pipelines, arrivals)
    role = {rank: 0 for rank in by_rank} | {
        rank: stage for chain in chains for stage, rank in enumerate(chain.ranks)
    }
    comparison = ComputeComparison({rank: compute_by_step(view) for rank, view in by_rank.items()}, role)
    waits = {rank: _waits(view, arrivals) for rank, view in by_rank.items()}
    blamed = blame_waits(by_rank, waits, arrivals, matches, comparison.cause)

    job = _job(by_rank, context)
    quality = _quality(by_rank, matches, clocks, job)
    table = cause_table(by_rank, blamed)
    ledger = _job_ledger(by_rank)
    pipeline = max((p.figures for p in pipelines), key=lambda f: f.measured, default=None)
    rows = root_causes(table, job.step_ms, pipeline, arrivals_unknown=ledger[Heading.COMMUNICATION_UNSPLIT])
    oversubscribed = _oversubscribed(by_rank, context)
    about = Circumstances(
        step_ms=job.step_ms,
        mfu=job.mfu,
        num_ranks=len(by_rank),
        world_size=job.world_size,
        num_steps=job.num_steps,
        oversubscribed=oversubscribed,
        quality=quality,
        pipeline=pipeline,
    )
    analysis = Analysis(
        job=job,
        trace_quality=quality,
        ledger=ledger,
        ranks=[_rank_ledger(view) for view in by_rank.values()],
        root_causes=rows,
        verdict=judge(rows, table, about),
        what_if=[],
        collectives=collective_table(by_rank, matches, arrivals),
        pipeline=pipeline,
        roofline=_roofline(by_rank),
        warnings=_warnings(by_rank, job, quality, context, oversubscribed=oversubscribed),
    )
    return analysis, [_timeline(view) for view in by_rank.values()]


def _align(
    views: dict[int, RankView],
) -> tuple[dict[int, RankView], Matches, Clocks, dict[CallId, Arrival]]:
    """Match calls, put all ranks on one clock, find the arrivals."""
    calls = {rank: view.calls for rank, view in views.items()}
    matches = match_calls(calls)
    clocks = estimate_clocks(calls, matches, {rank: view.header.host_name for rank, view in views.items()})
    views = {rank: _shifted(view, clocks.offset_ns[rank]) for rank, view in views.items()}
    calls = {rank: view.calls for rank, view in views.items()}
    if not any(view.on_device for view in views.values()):
        calls = complete_together(calls, matches)
        views = {rank: replace(view, calls=calls[rank]) for rank, view in views.items()}
    return views, matches, clocks, needed_arrivals(calls, matches, clocks.unrelated)


def _shifted(view: RankView, offset_ns: int) -> RankView:
    """The view on the job's clock."""
    if not offset_ns:
        return view
    segments, window = view.segments, view.window
    return replace(
        view,
        window=replace(
            window,
            start_ns=window.start_ns - offset_ns,
            end_ns=window.end_ns - offset_ns,
            boundary_ns=window.boundary_ns - offset_ns,
        ),
        segments=Segments(
            segments.start_ns - offset_ns, segments.end_ns - offset_ns, segments.heading, segments.charge
        ),
        calls=[_shifted_call(call, offset_ns) for call in view.calls],
        micro_batches=[
            replace(m, start_ns=m.start_ns - offset_ns, end_ns=m.end_ns - offset_ns) for m in view.micro_batches
        ],
    )


def _shifted_call(call: Call, offset_ns: int) -> Call:
    return replace(call, start_ns=call.start_ns - offset_ns, end_ns=call.end_ns - offset_ns)


def _waits(view: RankView, arrivals: Mapping[CallId, Arrival]) -> WaitPieces:
    return waits_to_blame(view.segments, view.rank, view.calls, arrivals)


def _charge_pipelines(
    views: dict[int, RankView], pipelines: Sequence[PipelineParts], arrivals: Mapping[CallId, Arrival]
) -> dict[int, RankView]:
    charged = dict(views)
    for parts in pipelines:
        for rank in parts.chain.ranks:
            view = views[rank]
            segments = charge_schedule(
                view.segments,
                _waits(view, arrivals),
                view.calls,
                step_bounds_ns=view.step_bounds_ns,
                structural_ns=parts.structural_ns,
                imbalance_ns=parts.imbalance_ns[rank],
            )
            charged[rank] = replace(view, segments=segments)
    return charged


def _job(views: Mapping[int, RankView], context: JobContext) -> Job:
    told = max((view.header.world_size or 0 for view in views.values()), default=0)
    world_size = max(told, len(views))
    steps = [float(np.mean(view.window.whole_step_ns)) / 1e6 for view in views.values()]
    step_ms = float(np.median(steps)) if steps else None
    usable = [v for v in views.values() if v.step_flops and v.peak_flops]
    mfu = None
    if usable and step_ms:
        shares = [v.step_flops / (step_ms / 1e3) / v.peak_flops for v in usable if v.step_flops and v.peak_flops]
        mean = float(np.mean(shares))
        mfu = mean if mean <= 1.0 else None
    first = next(iter(views.values()))
    return Job(
        world_size=world_size,
        ranks=list(views),
        missing_ranks=[rank for rank in range(world_size) if rank not in views],
        mesh=context.mesh,
        gpu=next((device.name for device in first.header.devices), None) if first.on_device else None,
        num_steps=min(len(view.window.boundary_ns) for view in views.values()),
        step_ms=step_ms,
        unprofiled_step_ms=context.unprofiled_step_ms,
        mfu=mfu,
        hfu=None,
        simulated_compute=context.simulated_compute,
    )


def _quality(views: Mapping[int, RankView], matches: Matches, clocks: Clocks, job: Job) -> TraceQuality:
    facts = [view.facts for view in views.values()]
    calls = [call for view in views.values() for call in view.calls]
    activities = sum(f.num_activities for f in facts)
    kernels = sum(f.num_kernels for f in facts)
    matchable = len(calls) - len(matches.incomplete)
    distortion = None
    if job.unprofiled_step_ms and job.step_ms:
        distortion = job.step_ms / job.unprofiled_step_ms - 1.0
    return TraceQuality(
        repaired=sum(f.repaired for f in facts),
        dropped=sum(f.dropped for f in facts),
        clipped=sum(f.clipped for f in facts),
        truncated_files=sum(f.truncated for f in facts),
        unlinked=sum(f.num_unlinked for f in facts) / activities if activities else 0.0,
        graph_share=sum(f.num_graph_kernels for f in facts) / kernels if kernels else 0.0,
        collective_args=sum(call.described for call in calls) / len(calls) if calls else None,
        unmatched_collectives=len(matches.unmatched) / matchable if matchable else None,
        steps_complete=job.num_steps,
        merged_boundaries=sum(view.window.num_merged for view in views.values()),
        clock_residual_us=clocks.residual_us,
        profiler_distortion=distortion,
    )


def _job_ledger(views: Mapping[int, RankView]) -> Ledger:
    """Sum of time over the sum of windows."""
    total = sum(view.window_ns for view in views.values())
    parts = [(fractions(view.segments, view.window_ns), view.window_ns / total) for view in views.values()]
    return {heading: sum(ledger[heading] * weight for ledger, weight in parts) for heading in HEADING_ORDER}


def _rank_ledger(view: RankView) -> RankLedger:
    bounds = view.step_bounds_ns
    steps = []
    for index, start, end in zip(view.window.index.tolist(), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        part = _cut(view.segments, start, end)
        steps.append(StepLedger(index, (end - start) / 1e6, fractions(part, end - start)))
    return RankLedger(
        rank=view.rank,
        window_ms=view.window_ns / 1e6,
        step_ms=float(np.mean(view.window.whole_step_ns)) / 1e6,
        ledger=fractions(view.segments, view.window_ns),
        hidden_communication=view.hidden_communication_ns / view.window_ns,
        steps=steps,
    )


def _cut(segments: Segments, start: int, end: int) -> Segments:
    first, last = np.searchsorted(segments.end_ns, start, side="right"), np.searchsorted(segments.start_ns, end)
    inside = slice(first, last)
    return Segments(
        np.maximum(segments.start_ns[inside], start),
        np.minimum(segments.end_ns[inside], end),
        segments.heading[inside],
        segments.charge[inside],
    )


def _roofline(views: Mapping[int, RankView]) -> Roofline:
    """Kernels of all ranks by name, and how their limits were decided."""
    time, count = Counter[str](), Counter[str]()
    sample: dict[str, KernelTime] = {}
    for view in views.values():
        for kernel in view.kernels:
            time[kernel.name] += kernel.ms  # type: ignore[assignment] # Counter adds floats well
            count[kernel.name] += kernel.count
            sample.setdefault(kernel.name, kernel)
    kernels = [replace(sample[name], ms=ms, count=count[name]) for name, ms in time.most_common()]
    parts = [view.coverage for view in views.values()]
    size = max(len(parts), 1)
    return Roofline(
        RooflineCoverage(
            sum(p.model for p in parts) / size, sum(p.by_name for p in parts) / size, sum(p.none for p in parts) / size
        ),
        kernels,
    )


def _oversubscribed(views: Mapping[int, RankView], context: JobContext) -> bool:
    """More runnable ranks than cores; sleeping layers leave the cores to the others."""
    if context.num_cpus is None or context.simulated_compute or any(view.on_device for view in views.values()):
        return False
    return Counter(view.header.host_name for view in views.values()).most_common(1)[0][1] > context.num_cpus


def _warnings(
    views: Mapping[int, RankView], job: Job, quality: TraceQuality, context: JobContext, *, oversubscribed: bool
) -> list[Notice]:
    notices = [*context.notices]
    for view in views.values():
        notices += [notice for notice in view.notices if notice not in notices]
    if job.missing_ranks:
        shown = ", ".join(map(str, job.missing_ranks[:8])) + (", ..." if len(job.missing_ranks) > 8 else "")
        notices.append(
            Notice("missing_ranks", f"no trace of {len(job.missing_ranks)} of {job.world_size} ranks ({shown})")
        )
    if quality.profiler_distortion is not None and quality.profiler_distortion > DISTORTION_WORTH_SAYING:
        notices.append(
            Notice(
                "profiler_distortion",
                f"capturing slowed the step by {quality.profiler_distortion:.0%}: host-side headings are upper bounds",
            )
        )
    if quality.truncated_files:
        notices.append(Notice("truncated", f"{quality.truncated_files} trace file(s) end too early; read as far as they go"))
    if quality.unmatched_collectives:
        notices.append(
            Notice("unmatched_collectives", f"{quality.unmatched_collectives:.1%} of the communication calls have no match")
        )
    if oversubscribed:
        notices.append(Notice("oversubscribed", f"more ranks than the {context.num_cpus} cores: waits also measure the queue for a core"))
    return notices


def _timeline(view: RankView) -> RankTimeline:
    return RankTimeline(
        rank=view.rank,
        start_ns=view.segments.start_ns.tolist(),
        end_ns=view.window.end_ns,
        headings=view.segments.heading.tolist(),
        step_starts_ns=view.window.boundary_ns.tolist(),
        step_indices=view.window.index.tolist(),
    )
