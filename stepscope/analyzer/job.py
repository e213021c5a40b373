"""Analysis of a job, the cross-rank half: the views of all ranks in, the whole answer out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from stepscope.analyzer.alignment.arrivals import (
    Arrival,
    CallColumns,
    WaitPieces,
    call_columns,
    movable_wait,
    needed_arrivals,
    seen_arrivals,
    split_communication,
    waits_to_attribute,
)
from stepscope.analyzer.alignment.clocks import Clocks, estimate_clocks
from stepscope.analyzer.alignment.host_calls import complete_together
from stepscope.analyzer.alignment.matching import CallId, Matches, match_calls
from stepscope.analyzer.alignment.normalization import on_job_clock, on_machines, with_common_steps
from stepscope.analyzer.alignment.process_groups import by_only_dimension, with_groups
from stepscope.analyzer.blame.reasons import VerdictInputs
from stepscope.analyzer.blame.root_causes import CauseTable, cause_table, resample
from stepscope.analyzer.blame.stragglers import ComputeComparison
from stepscope.analyzer.blame.unnamed_ranks import fixes_without_unnamed, without_unnamed
from stepscope.analyzer.blame.waits import attribute_waits
from stepscope.analyzer.communication import arrivals_of_ranks, collective_table, cost_by_dimension, transfer_faults
from stepscope.analyzer.kernels.job_kernels import with_kernel_reasons
from stepscope.analyzer.kernels.low_parallelism import low_parallelism
from stepscope.analyzer.ledger.segments import CAUSE_CODE
from stepscope.analyzer.missing_evidence import missing_evidence
from stepscope.analyzer.pipeline.bubble import PipelineParts, attribute_schedule, explain
from stepscope.analyzer.pipeline.stages import find_chains
from stepscope.analyzer.rank_view import RankView, compute_by_step
from stepscope.analyzer.summaries import (
    JobContext,
    comparable_step_ms,
    describe_job,
    is_oversubscribed,
    job_ledger,
    job_roofline,
    notices_of,
    rank_ledger,
    trace_quality,
    world_size_of,
)
from stepscope.analyzer.verdict import UNEXPLAINED_THRESHOLD, judge, root_causes
from stepscope.analyzer.what_if.model import ReplayModel, build_model, why_not_replayable
from stepscope.analyzer.what_if.pipeline_schedule import (
    PipelineSchedule,
    add_micro_batch_fixes,
    recorded_schedule,
    replay_schedules,
)
from stepscope.analyzer.what_if.predictions import add_gain_to_verdict, predict, replay_causes, replay_pipeline_causes
from stepscope.core.documents.analysis import Analysis, MeshSizes, RootCause, WhatIf
from stepscope.core.documents.what_if import WhatIfReport
from stepscope.core.errors import DataError
from stepscope.core.vocabulary import Cause, Notice, TimeCategory


def analyse_job(views: Sequence[RankView], context: JobContext) -> tuple[Analysis, list[RankView]]:
    """Analyse a job from the views of its ranks: align, split waiting from transfer, attribute it, and judge.

    Args:
        views: one a rank, each rank once.
        context: facts that are not in the traces.

    Returns:
        The analysis, and the views with their final segments, on the job's clock.
    """
    aligned = _explain(views, context.mesh)
    by_rank = aligned.views
    job = describe_job(by_rank, context)
    quality = trace_quality(by_rank, aligned.matches, aligned.clocks, job, context)
    oversubscribed = is_oversubscribed(by_rank, context)
    pipeline = max((parts.figures for parts in aligned.pipelines), key=lambda f: f.measured, default=None)
    columns = _call_columns(aligned)
    collectives = collective_table(
        by_rank,
        aligned.matches,
        aligned.arrivals,
        columns,
        network_bytes_per_second=context.network_bytes_per_second,
    )
    roofline = job_roofline(by_rank)
    ledger = job_ledger(by_rank)
    missing = missing_evidence(by_rank)
    inputs = VerdictInputs(
        job=job,
        quality=quality,
        views=by_rank,
        table=aligned.table,
        pipeline=pipeline,
        unexplained_loss=aligned.table.unexplained_waiting() + ledger[TimeCategory.IDLE_OTHER],
        missing=missing,
        arrivals_unknown=ledger[TimeCategory.COMMUNICATION_UNSPLIT],
        oversubscribed=oversubscribed,
        movable=_movable_share(aligned, columns),
        communication=transfer_faults(collectives, by_rank, job.num_steps),
        parallelism=low_parallelism([view.kernel_sums for view in by_rank.values()], roofline),
        data_waits_ns=context.data_waits_ns,
    )
    resampled = resample(aligned.table)
    rows = with_kernel_reasons(root_causes(inputs, resampled), roofline, job)
    known = [row for row in rows if not inputs.is_guess(row)] if inputs.unexplained_loss < UNEXPLAINED_THRESHOLD else []
    what_if, left_out = _gains(aligned, known, context)
    analysis = Analysis(
        job=job,
        trace_quality=quality,
        ledger=ledger,
        ranks=[rank_ledger(view) for view in by_rank.values()],
        root_causes=rows,
        verdict=add_gain_to_verdict(judge(rows, resampled, inputs), what_if),
        what_if=what_if,
        collectives=collectives,
        communication_by_dimension=cost_by_dimension(by_rank, columns),
        arrivals=arrivals_of_ranks(by_rank, aligned.matches, columns),
        pipeline=pipeline,
        roofline=roofline,
        warnings=[
            *notices_of(by_rank, job, quality, context, missing, oversubscribed=oversubscribed),
            *left_out,
        ],
    )
    return without_unnamed(analysis, by_rank), list(by_rank.values())


def what_if_job(views: Sequence[RankView], context: JobContext, *, causes: Collection[Cause] = ()) -> WhatIfReport:
    """Replay the job with one cause removed at a time.

    Args:
        views: one a rank, each rank once.
        context: facts that are not in the traces.
        causes: fixes to replay; all when empty.

    Raises:
        DataError: the traces do not allow a replay.
    """
    aligned = _explain(views, context.mesh)
    for one in missing_evidence(aligned.views):
        if one.share >= UNEXPLAINED_THRESHOLD:
            raise DataError(f"no gain can be predicted from these traces: {one.what}", what_next=one.remedy)
    model = _replay_model(aligned)
    if aligned.schedules and (model is None or (causes and set(causes) <= {Cause.PIPELINE_BUBBLE})):
        report = replay_schedules(aligned.schedules, causes)
    elif model is None:
        raise DataError(
            f"these traces cannot be replayed: {why_not_replayable(aligned.views)}",
            what_next="profile whole steps on every rank with CPU (and CUDA) activities (stepscope.profile does)",
        )
    else:
        unprofiled_ms = comparable_step_ms(aligned.views, context.unprofiled_step_ms)
        report = predict(model, unprofiled_ms=unprofiled_ms, causes=causes)
        if aligned.schedules:
            report = add_micro_batch_fixes(report, aligned.schedules, causes)
    fixes = fixes_without_unnamed(report.fixes, aligned.views)
    return replace(report, fixes=fixes, warnings=[*report.warnings, *context.notices])


def replay_model(views: Sequence[RankView]) -> ReplayModel | None:
    """The job as a graph that can be replayed; None where the traces do not allow it."""
    return _replay_model(_explain(views, MeshSizes()))


@dataclass(frozen=True, slots=True)
class _AlignedJob:
    """The job after alignment and wait attribution.

    Attributes:
        views: on the job's clock, with their final segments.
        schedules: the pipelines that can be replayed.
        role: by rank, its pipeline stage.
    """

    views: dict[int, RankView]
    matches: Matches
    clocks: Clocks
    arrivals: dict[CallId, Arrival]
    pipelines: list[PipelineParts]
    schedules: list[PipelineSchedule]
    role: dict[int, int]
    table: CauseTable


def _explain(views: Sequence[RankView], mesh: MeshSizes) -> _AlignedJob:
    by_rank = {view.rank: view for view in sorted(views, key=lambda view: view.rank)}
    by_rank, matches, clocks, arrivals = _align(with_common_steps(by_rank), mesh)
    by_rank = {
        rank: replace(view, segments=split_communication(view.segments, rank, view.calls, arrivals))
        for rank, view in by_rank.items()
    }
    chains = find_chains({rank: view.calls for rank, view in by_rank.items()})
    pipelines = [parts for chain in chains if (parts := explain(chain, by_rank)) is not None]
    schedules = [schedule for chain in chains if (schedule := recorded_schedule(chain, by_rank)) is not None]
    by_rank = _attribute_bubbles(by_rank, pipelines, arrivals)
    role = dict.fromkeys(by_rank, 0) | {rank: stage for chain in chains for stage, rank in enumerate(chain.ranks)}
    comparison = ComputeComparison({rank: compute_by_step(view) for rank, view in by_rank.items()}, role)
    pieces = {rank: _waits(view, arrivals) for rank, view in by_rank.items()}
    waits = attribute_waits(by_rank, pieces, arrivals, matches, comparison.cause)
    heavy = {rank: parts.heavy for parts in pipelines for rank in parts.chain.ranks}
    table = cause_table(by_rank, waits, heavy)
    return _AlignedJob(by_rank, matches, clocks, arrivals, pipelines, schedules, role, table)


def _gains(aligned: _AlignedJob, causes: Sequence[RootCause], context: JobContext) -> tuple[list[WhatIf], list[Notice]]:
    """Predicted gain of fixing each cause, and notices on what was left out."""
    unprofiled_ms = comparable_step_ms(aligned.views, context.unprofiled_step_ms)
    what_if, left_out = replay_causes(lambda: _replay_model(aligned), causes, unprofiled_ms)
    known = {gain.fix for gain in what_if}
    by_schedule = replay_pipeline_causes(aligned.schedules, [row for row in causes if row.cause not in known])
    return [*what_if, *by_schedule], left_out


def _call_columns(aligned: _AlignedJob) -> CallColumns:
    calls = {rank: view.calls for rank, view in aligned.views.items()}
    return call_columns(aligned.views, aligned.arrivals, seen_arrivals(calls, aligned.matches, aligned.clocks.island))


def _movable_share(aligned: _AlignedJob, columns: CallColumns) -> float:
    """Share of all windows that a clock error of the residual moves between waiting and transfer."""
    windows = sum(view.window_ns for view in aligned.views.values())
    return sum(movable_wait(columns, aligned.arrivals, aligned.clocks).values()) / windows


def _replay_model(aligned: _AlignedJob) -> ReplayModel | None:
    before_window = aligned.table.time_ns[:, CAUSE_CODE[Cause.BEFORE_WINDOW]] / aligned.table.step_ns
    return build_model(aligned.views, aligned.matches, aligned.clocks.offset_ns, aligned.role, before_window.tolist())


def _align(
    views: dict[int, RankView], mesh: MeshSizes
) -> tuple[dict[int, RankView], Matches, Clocks, dict[CallId, Arrival]]:
    """Views on one clock, the matches of their calls, the clocks and the arrivals."""
    world_size = world_size_of(views)
    hosts = {rank: view.header.host_name for rank, view in views.items()}
    calls = with_groups({rank: view.calls for rank, view in views.items()}, world_size, hosts)
    calls = {rank: by_only_dimension(own, mesh, world_size) for rank, own in calls.items()}
    matches = match_calls(calls)
    views = on_machines(views, calls, matches)
    clocks = estimate_clocks(calls, matches, {rank: view.header.host_name for rank, view in views.items()})
    views = {rank: on_job_clock(replace(view, calls=calls[rank]), clocks) for rank, view in views.items()}
    calls = {rank: view.calls for rank, view in views.items()}
    if not any(view.on_device for view in views.values()):
        calls = complete_together(calls, matches)
        views = {rank: replace(view, calls=calls[rank]) for rank, view in views.items()}
    return views, matches, clocks, needed_arrivals(calls, matches, clocks.island)


def _waits(view: RankView, arrivals: Mapping[CallId, Arrival]) -> WaitPieces:
    return waits_to_attribute(view.segments, view.rank, view.calls, arrivals)


def _attribute_bubbles(
    views: dict[int, RankView], pipelines: Sequence[PipelineParts], arrivals: Mapping[CallId, Arrival]
) -> dict[int, RankView]:
    attributed = dict(views)
    for parts in pipelines:
        for rank in parts.chain.ranks:
            view = views[rank]
            segments = attribute_schedule(
                view.segments,
                _waits(view, arrivals),
                view.calls,
                step_bounds_ns=view.step_bounds_ns,
                structural=parts.structural_ns[rank],
                imbalance=parts.imbalance_ns[rank],
            )
            attributed[rank] = replace(view, segments=segments)
    return attributed
