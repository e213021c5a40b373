"""Analysis of a job, the cross-rank half: the views of all ranks in, the whole answer out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from stepscope.analyzer import summaries
from stepscope.analyzer.blame.advice import Advice
from stepscope.analyzer.blame.reasons import VerdictInputs
from stepscope.analyzer.blame.root_cause_table import root_causes
from stepscope.analyzer.blame.root_causes import CauseTable, cause_table, resample
from stepscope.analyzer.blame.stragglers import ComputeComparison, work_of
from stepscope.analyzer.blame.unnamed_ranks import without_unnamed
from stepscope.analyzer.blame.waits import attribute_waits
from stepscope.analyzer.collectives import arrivals
from stepscope.analyzer.collectives.calls import CallId, Matches, match_calls
from stepscope.analyzer.collectives.clocks import Clocks, estimate_clocks
from stepscope.analyzer.collectives.costs import arrivals_of_ranks, collective_table, cost_by_dimension, transfer_faults
from stepscope.analyzer.collectives.host_calls import end_messages_together
from stepscope.analyzer.collectives.normalization import on_job_clock, on_machines, with_common_steps
from stepscope.analyzer.collectives.process_groups import (
    with_dimension_of_wrapper,
    with_only_mesh_dimension,
    with_process_groups,
)
from stepscope.analyzer.headroom.changes import JobFacts
from stepscope.analyzer.headroom.headrooms import with_headroom
from stepscope.analyzer.headroom.step_model import Span
from stepscope.analyzer.job_time.captured_steps import CapturedSteps, captured_steps
from stepscope.analyzer.job_time.job_verdict import with_job_time
from stepscope.analyzer.job_time.loss import TELEMETRY
from stepscope.analyzer.job_time.steps import JobSteps, has_free_cores
from stepscope.analyzer.kernels.job_kernels import are_to_host, kernel_section, with_kernel_reasons
from stepscope.analyzer.kernels.low_parallelism import low_parallelism
from stepscope.analyzer.ledger.job_ledger import job_ledger, rank_ledger
from stepscope.analyzer.ledger.segments import CAUSE_CODE
from stepscope.analyzer.ledger.unrecorded_work import Missing
from stepscope.analyzer.missing_evidence import MissingEvidence, missing_evidence
from stepscope.analyzer.pipeline.bubble import PipelineParts, attribute_bubble, explain_bubble
from stepscope.analyzer.pipeline.stages import find_chains
from stepscope.analyzer.rank_view import RankView, compute_by_step
from stepscope.analyzer.slow_settings import traced_settings, with_slow_settings
from stepscope.analyzer.summaries import JobContext
from stepscope.analyzer.verdict import GUESSED_CONFIDENCE, UNEXPLAINED_THRESHOLD, judge
from stepscope.analyzer.what_if import pipeline_schedule, predictions
from stepscope.analyzer.what_if.replay import ReplayModel, build_model
from stepscope.core.documents.analysis import Analysis, MeshSizes, WhatIf
from stepscope.core.vocabulary import Cause, TimeCategory


def analyse_job(views: Sequence[RankView], context: JobContext) -> tuple[Analysis, list[RankView]]:
    """Analyse a job from the views of its ranks: align, split waiting from transfer, attribute it, and judge.

    Args:
        views: one a rank, each rank once.
        context: facts that are not in the traces.

    Returns:
        The analysis, and the views with their final segments, on the job's clock.
    """
    aligned = explain_job(views, context.mesh)
    by_rank = aligned.views
    steps = None if context.run is None else context.run.steps(is_one_clock=aligned.is_one_clock)
    job = summaries.describe_job(by_rank, context)
    quality = summaries.trace_quality(by_rank, aligned.matches, aligned.clocks, job, context)
    oversubscribed = summaries.is_oversubscribed(by_rank, context)
    pipeline = max((parts.figures for parts in aligned.pipelines), key=lambda f: f.measured, default=None)
    columns = arrivals.call_columns(by_rank, aligned.matches, aligned.clocks, aligned.arrivals)
    collectives = collective_table(
        by_rank,
        aligned.matches,
        aligned.arrivals,
        columns,
        network_bytes_per_second=context.network_bytes_per_second,
    )
    roofline = kernel_section(by_rank)
    ledger = job_ledger(by_rank)
    missing = missing_evidence(by_rank, context.unrecorded)
    unrecorded = next((one for one in missing if one.kind is Missing.DEVICE), None)
    headers = [view.header for view in by_rank.values()]
    advice = Advice(
        context.settings,
        on_cpu=job.device_kind == "cpu",
        with_stacks=any(header.with_stacks for header in headers),
        backend=next((header.backend for header in headers if header.backend), ""),
        affinity=context.cpu_affinity,
        micro_batches=None if pipeline is None else pipeline.micro_batches,
        optimizer=next((view.facts.optimizer for view in by_rank.values() if view.facts.optimizer), ""),
        optimizer_launches=max(view.facts.optimizer_launches for view in by_rank.values()),
        product_type=next((view.facts.product_type for view in by_rank.values() if view.facts.product_type), None),
        copies_to_host=are_to_host(roofline.copies),
        has_free_cores=steps is not None and has_free_cores(steps),
    )
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
        movable=arrivals.movable_wait_share(by_rank, columns, aligned.arrivals, aligned.clocks),
        communication=transfer_faults(collectives, by_rank, job.num_steps),
        parallelism=low_parallelism([view.kernel_sums for view in by_rank.values()], roofline),
        data_waits_ns=context.data_waits_ns,
        advice=advice,
    )
    resampled = resample(aligned.table)
    rows = [with_kernel_reasons(row, roofline, job) for row in root_causes(inputs, resampled)]
    verdict = judge(rows, resampled, inputs)
    unprofiled_ms = summaries.comparable_step_ms(by_rank, context.unprofiled_step_ms)
    is_explained = inputs.unexplained_loss < UNEXPLAINED_THRESHOLD and unrecorded is None
    is_known = is_explained and verdict.cause is not Cause.INSUFFICIENT_EVIDENCE
    certain = [row for row in rows if is_known and not inputs.is_guess(row)]
    num_replayed = aligned.num_replayed
    replay = cache(_no_model if num_replayed > predictions.max_slots() else aligned.replay_model)
    what_if, left_out = predictions.replay_causes(replay, certain, unprofiled_ms, num_events=num_replayed)
    known = {gain.fix for gain in what_if}
    others = [row for row in certain if row.cause not in known]
    what_if += predictions.replay_pipeline_causes(aligned.schedules, others)
    analysis = Analysis(
        job=job,
        trace_quality=quality,
        ledger=ledger,
        ranks=[rank_ledger(view) for view in by_rank.values()],
        root_causes=rows,
        verdict=predictions.add_gain_to_verdict(verdict, what_if),
        what_if=what_if,
        collectives=collectives,
        communication_by_dimension=cost_by_dimension(by_rank, columns),
        arrivals=arrivals_of_ranks(by_rank, aligned.matches, columns),
        pipeline=pipeline,
        roofline=roofline,
        warnings=[
            *summaries.analysis_notices(by_rank, job, quality, context, missing, oversubscribed=oversubscribed),
            *left_out,
        ],
    )
    capture = aligned.captured(what_if)
    analysis = with_job_time(without_unnamed(analysis, by_rank), capture, context.run, advice, steps)
    analysis = analysis if unrecorded is None else _without_gain(analysis, unrecorded)
    analysis = with_slow_settings(analysis, [*context.slow_settings, *traced_settings(by_rank, context.slow_settings)])
    facts = _job_facts(analysis, by_rank, context, replay, steps)
    return with_headroom(analysis, facts, knobs=advice.options.of_changes()), list(by_rank.values())


def _job_facts(
    analysis: Analysis,
    views: Mapping[int, RankView],
    context: JobContext,
    replay: Callable[[], ReplayModel | None],
    steps: JobSteps | None,
) -> JobFacts:
    """What models of headroom know of a job."""
    figures = {} if steps is None else steps.figures
    light = None if context.run is None else context.run.light
    peak, allocated = (
        None if name not in figures or np.isnan(figures[name]).all() else float(np.nanmax(figures[name]))
        for name in ("memory_peak_bytes", "memory_allocated_bytes")
    )
    sizes = [device.memory_bytes for view in views.values() for device in view.header.devices if device.memory_bytes]
    return JobFacts(
        analysis,
        views,
        settings=context.settings,
        peak_memory_bytes=peak,
        batch_bytes=None if peak is None or allocated is None else peak - allocated,
        memory_bytes=min(sizes, default=None),
        host_ms=None if light is None or light.host_ms is None else Span(*light.host_ms),
        replay=replay,
    )


def _without_gain(analysis: Analysis, missing: MissingEvidence) -> Analysis:
    """The analysis where nothing is known of some ranks' devices; a verdict on the records of all steps stays."""
    verdict = analysis.verdict
    is_recorded = verdict.fix is not None and verdict.fix.basis == TELEMETRY
    if verdict.cause is Cause.INSUFFICIENT_EVIDENCE or is_recorded:
        return analysis
    verdict = replace(
        verdict,
        confidence=min(verdict.confidence, GUESSED_CONFIDENCE),
        summary=f"{verdict.summary}; {missing.what}: {missing.remedy}",
        actions=[missing.remedy, *verdict.actions],
        fix=None,
    )
    return replace(analysis, verdict=verdict)


def capture_of(views: Sequence[RankView], mesh: MeshSizes) -> CapturedSteps:
    """The steps of one capture by cause, as evidence beside another capture of the job; views one a rank."""
    aligned = explain_job(views, mesh)
    return aligned.captured([])


def _no_model() -> None:
    """In place of a replay of too many events."""


MAX_CLOCK_SHARE = 0.05
"""Largest difference between clocks, as a share of the step, for them to be one: a millisecond is gloo's noise."""


class AlignedJob(NamedTuple):
    """The job after alignment and wait attribution.

    Attributes:
        views: on the job's clock, with their final segments.
        schedules: the pipelines that can be replayed.
        role: by rank, its pipeline stage.
    """

    views: dict[int, RankView]
    matches: Matches
    clocks: Clocks
    arrivals: dict[CallId, arrivals.Arrival]
    pipelines: list[PipelineParts]
    schedules: list[pipeline_schedule.PipelineSchedule]
    role: dict[int, int]
    table: CauseTable

    def captured(self, what_if: Sequence[WhatIf]) -> CapturedSteps:
        """The whole steps of the capture by cause."""
        return captured_steps(self.views, self.table, what_if, self.pipelines, is_one_clock=self.is_one_clock)

    @property
    def is_one_clock(self) -> bool:
        """Whether all ranks have the same time, and end a step together unless something holds one of them up."""
        step_ns = min(float(np.median(view.window.whole_step_ns)) for view in self.views.values())
        return not (self.pipelines or self.schedules) and self.clocks.are_within(MAX_CLOCK_SHARE * step_ns)

    @property
    def num_replayed(self) -> int:
        """How many events the ranks' graphs have; a replay, which ends with the last step, has about as many."""
        graphs = [view.graph for view in self.views.values() if view.graph is not None]
        return sum(len(graph.host) + len(graph.device) for graph in graphs)

    def replay_model(self) -> ReplayModel | None:
        before_window = self.table.time_ns[:, CAUSE_CODE[Cause.BEFORE_WINDOW]] / self.table.step_ns
        return build_model(self.views, self.matches, self.clocks.offset_ns, self.role, before_window.tolist())


def explain_job(views: Sequence[RankView], mesh: MeshSizes) -> AlignedJob:
    """Analyzer, whole job: all ranks' views on one clock, with each wait attributed to its cause."""
    by_rank = {view.rank: view for view in sorted(views, key=lambda view: view.rank)}
    by_rank, matches, clocks, last = _align(with_common_steps(by_rank), mesh)
    by_rank = {rank: arrivals.split_communication(view, last) for rank, view in by_rank.items()}
    chains = find_chains({rank: view.calls for rank, view in by_rank.items()})
    pipelines = [parts for chain in chains if (parts := explain_bubble(chain, by_rank)) is not None]
    schedules = [found for chain in chains if (found := pipeline_schedule.recorded_schedule(chain, by_rank))]
    pieces = {rank: arrivals.waits_to_attribute(view, last) for rank, view in by_rank.items()}
    changed = {rank: attribute_bubble(by_rank[rank], one, pieces[rank]) for one in pipelines for rank in one.chain}
    by_rank |= changed
    pieces |= {rank: arrivals.waits_to_attribute(view, last) for rank, view in changed.items()}
    role = dict.fromkeys(by_rank, 0) | {rank: stage for chain in chains for stage, rank in enumerate(chain)}
    compute_ns = {rank: compute_by_step(view) for rank, view in by_rank.items()}
    comparison = ComputeComparison(compute_ns, role, {rank: work_of(view) for rank, view in by_rank.items()})
    waits = attribute_waits(by_rank, pieces, last, matches, comparison.cause)
    heavy = {rank: parts.heavy for parts in pipelines for rank in parts.chain}
    return AlignedJob(by_rank, matches, clocks, last, pipelines, schedules, role, cause_table(by_rank, waits, heavy))


def _align(
    views: dict[int, RankView], mesh: MeshSizes
) -> tuple[dict[int, RankView], Matches, Clocks, dict[CallId, arrivals.Arrival]]:
    """Views on one clock, the matches of their calls, the clocks, and the last arrival that each call needs."""
    world_size = summaries.world_size_of(views)
    hosts = {rank: view.header.host_name for rank, view in views.items()}
    calls = with_process_groups({rank: view.calls for rank, view in views.items()}, world_size, hosts)
    calls = {rank: with_dimension_of_wrapper(own) for rank, own in calls.items()}
    calls = {rank: with_only_mesh_dimension(own, mesh, world_size) for rank, own in calls.items()}
    matches = match_calls(calls)
    views = on_machines(views, calls, matches)
    clocks = estimate_clocks(calls, matches, {rank: view.header.host_name for rank, view in views.items()})
    views = {rank: on_job_clock(replace(view, calls=calls[rank]), clocks) for rank, view in views.items()}
    calls = {rank: view.calls for rank, view in views.items()}
    if not any(view.on_device for view in views.values()):
        calls = end_messages_together(calls, matches)
        views = {rank: replace(view, calls=calls[rank]) for rank, view in views.items()}
    return views, matches, clocks, arrivals.needed_arrivals(calls, matches, clocks.island)
