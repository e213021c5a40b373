"""How is each part of an analysis summed up: the job, its trace quality, the ledgers, the kernels?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import prod

import numpy as np

from stepscope.analyzer.alignment.clocks import Clocks
from stepscope.analyzer.alignment.dimensions import dimension_of_members
from stepscope.analyzer.alignment.matching import CallId, Matches
from stepscope.analyzer.alignment.traffic import sizes_by_traffic
from stepscope.analyzer.kernels.findings import kernel_findings, tiny_share
from stepscope.analyzer.kernels.tables import copy_table, kernel_tables
from stepscope.analyzer.ledger.device_ledger import fractions
from stepscope.analyzer.ledger.segments import Segments
from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.step_likeness import comparable_step_ms
from stepscope.core.analysis import (
    Job,
    Ledger,
    MeshSizes,
    Notice,
    RankLedger,
    Roofline,
    RooflineCoverage,
    StepLedger,
    TraceQuality,
)
from stepscope.core.timeline import HEADING_ORDER, RankTimeline


@dataclass(frozen=True, slots=True)
class JobContext:
    """What is known of the job beside its traces; None and empty where it is not.

    Attributes:
        unprofiled_step_ms: the step before capturing.
        mesh: sizes by dimension.
        num_cpus: processors that the ranks of a host share.
        simulated_compute: layers sleep instead of computing.
        truncated_files: traces left out because they end too early.
        data_waits_ns: by rank, how long each step waited for its data, where the run kept that.
        network_bytes_per_second: of each GPU's network card in one direction.
    """

    unprofiled_step_ms: float | None = None
    mesh: MeshSizes = field(default_factory=MeshSizes)
    num_cpus: int | None = None
    simulated_compute: bool = False
    truncated_files: int = 0
    notices: tuple[Notice, ...] = ()
    data_waits_ns: Mapping[int, Sequence[int]] = field(default_factory=dict)
    network_bytes_per_second: float | None = None


def world_size_of(views: Mapping[int, RankView]) -> int:
    """Ranks of the job: what the traces say, at least as many as the largest rank tells."""
    told = max((view.header.world_size or 0 for view in views.values()), default=0)
    return max(told, max(views) + 1)


FLOPS_KNOWN_FROM = 0.5
"""Share of kernel time whose operators have a cost: below it a sum of FLOPs is that of a few operators."""


def describe_job(views: Mapping[int, RankView], context: JobContext) -> Job:
    """What was analysed; views by rank, on the job's clock."""
    world_size = world_size_of(views)
    steps = [float(np.mean(view.window.whole_step_ns)) / 1e6 for view in views.values()]
    step_ms = float(np.median(steps)) if steps else None
    mfu = mfu_of(views, step_ms)
    hfu = hfu_of(views, step_ms)
    first = next(iter(views.values()))
    return Job(
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


def mfu_of(views: Mapping[int, RankView], step_ms: float | None) -> float | None:
    """Model FLOPs utilisation as it comes out, above 1 too; None where FLOPs, peak or step are not known."""
    return _utilization([(view.step_flops, view.peak_flops) for view in _costed(views)], step_ms)


def hfu_of(views: Mapping[int, RankView], step_ms: float | None) -> float | None:
    """Hardware FLOPs utilisation as it comes out, above 1 too; None where FLOPs, peak or step are not known."""
    return _utilization([(view.executed_flops, view.peak_flops) for view in _costed(views)], step_ms)


def _costed(views: Mapping[int, RankView]) -> list[RankView]:
    return [view for view in views.values() if view.coverage.costed >= FLOPS_KNOWN_FROM]


def _utilization(flops_and_peak: Sequence[tuple[float | None, float | None]], step_ms: float | None) -> float | None:
    """FLOPs of a step over what the peak allows, mean over ranks; above 1 something is wrong with peak or model."""
    shares = [flops / peak for flops, peak in flops_and_peak if flops and peak]
    return float(np.mean(shares)) / (step_ms / 1e3) if shares and step_ms else None


def _mesh(views: Mapping[int, RankView], context: JobContext, world_size: int) -> MeshSizes:
    """As the run tells, else from the descriptions of the process groups and from whom the calls serve."""
    if context.mesh != MeshSizes():
        return context.mesh
    sizes: dict[str, int] = {}
    for view in views.values():
        for members, dimension in dimension_of_members(view.header.groups).items():
            sizes[dimension] = max(sizes.get(dimension, 1), len(members))
    by_traffic = sizes_by_traffic(call for view in views.values() for call in view.calls)
    for dimension in ("tp", "dp", "pp", "ep", "cp"):
        size = by_traffic.get(dimension)
        # experts and sequences are cut inside other dimensions; the others cannot have more places than ranks
        fits = (
            dimension in ("ep", "cp") or prod(sizes.get(d, 1) for d in ("tp", "dp", "pp")) * (size or 0) <= world_size
        )
        if size is not None and fits:
            sizes.setdefault(dimension, size)
    return MeshSizes(**sizes)


def trace_quality(
    views: Mapping[int, RankView], matches: Matches, clocks: Clocks, job: Job, context: JobContext
) -> TraceQuality:
    """How far the traces can be trusted: all ranks' facts together, shares of the worst rank where the name says so."""
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
    return TraceQuality(
        repaired=sum(f.repaired for f in facts),
        dropped=sum(f.dropped for f in facts),
        clipped=sum(f.clipped for f in facts),
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
        clipped_us=sum(f.clipped_ns for f in facts) / 1e3,
        early=sum(f.num_early for f in facts) / linked if linked else 0.0,
        lost_at_start=sum(f.lost_at_start for f in facts),
        steps_marked=sorted({index for f in facts for index in f.step_indices}),
        steps_used=sorted(set.intersection(*(set(view.window.index.tolist()) for view in views.values()))),
        steps_without_device=max((len(f.empty_steps) / max(len(f.step_indices), 1) for f in facts), default=0.0),
        largest_activity=max((f.largest_share for f in facts), default=0.0),
    )


def job_ledger(views: Mapping[int, RankView]) -> Ledger:
    """Sum of time over the sum of windows."""
    total = sum(view.window_ns for view in views.values())
    parts = [(fractions(view.segments, view.window_ns), view.window_ns / total) for view in views.values()]
    return {heading: sum(ledger[heading] * weight for ledger, weight in parts) for heading in HEADING_ORDER}


def rank_ledger(view: RankView) -> RankLedger:
    """One rank's window as shares by heading, whole and step by step."""
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


def job_roofline(views: Mapping[int, RankView]) -> Roofline:
    """Kernels and copies of all ranks, and how the kernels' limits were decided."""
    ranks = [view.kernel_sums for view in views.values()]
    tables = kernel_tables(ranks)
    total = np.sum([rank.total for rank in ranks], axis=0)
    copies = copy_table(copy for rank in ranks for copy in rank.copies)
    window_ms = sum(view.window_ns for view in views.values()) / 1e6
    parts = [view.coverage for view in views.values()]
    shares = {
        part.name: sum(getattr(p, part.name) for p in parts) / max(len(parts), 1) for part in fields(RooflineCoverage)
    }
    return Roofline(
        RooflineCoverage(**shares),
        **tables,
        copies=copies,
        tiny_kernels=tiny_share(total),
        findings=kernel_findings(total, tables["kernels"], copies, window_ms),
    )


def is_oversubscribed(views: Mapping[int, RankView], context: JobContext) -> bool:
    """More runnable ranks than cores; sleeping layers leave the cores to the others."""
    if context.num_cpus is None or context.simulated_compute or any(view.on_device for view in views.values()):
        return False
    return Counter(view.header.host_name for view in views.values()).most_common(1)[0][1] > context.num_cpus


def timeline(view: RankView) -> RankTimeline:
    """A rank's segments as they are kept beside its run."""
    return RankTimeline(
        rank=view.rank,
        start_ns=view.segments.start_ns.tolist(),
        end_ns=view.window.end_ns,
        headings=view.segments.heading.tolist(),
        step_starts_ns=view.window.boundary_ns.tolist(),
        step_indices=view.window.index.tolist(),
    )
