"""What-if of a whole job, from the views of its ranks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from stepscope.analyzer.blame.unnamed_ranks import fixes_without_unnamed
from stepscope.analyzer.job import explain_job
from stepscope.analyzer.ledger.unrecorded_work import Missing
from stepscope.analyzer.missing_evidence import missing_evidence
from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.summaries import JobContext, comparable_step_ms
from stepscope.analyzer.verdict import UNEXPLAINED_THRESHOLD
from stepscope.analyzer.what_if import pipeline_schedule, predictions
from stepscope.analyzer.what_if.replay import ReplayModel, why_not_replayable
from stepscope.core.documents.analysis import MeshSizes
from stepscope.core.documents.what_if import WhatIfReport
from stepscope.core.errors import DataError
from stepscope.core.vocabulary import Cause


def what_if_job(views: Sequence[RankView], context: JobContext, *, causes: Collection[Cause] = ()) -> WhatIfReport:
    """What-if: replay the job with one cause removed at a time; for all `causes` where none is given.

    Raises:
        DataError: the traces do not allow a replay.
    """
    aligned = explain_job(views, context.mesh)
    for one in missing_evidence(aligned.views, context.unrecorded):
        if one.share >= UNEXPLAINED_THRESHOLD or one.kind is Missing.DEVICE:
            raise DataError(f"no gain can be predicted from these traces: {one.what}", what_next=one.remedy)
    model = aligned.replay_model()
    if aligned.schedules and (model is None or (causes and set(causes) <= {Cause.PIPELINE_BUBBLE})):
        report = pipeline_schedule.replay_schedules(aligned.schedules, causes)
    elif model is None:
        raise DataError(
            f"these traces cannot be replayed: {why_not_replayable(aligned.views)}",
            what_next="profile whole steps on every rank with CPU (and CUDA) activities (stepscope.profile does)",
        )
    else:
        unprofiled_ms = comparable_step_ms(aligned.views, context.unprofiled_step_ms)
        report = predictions.predict_fixes(model, unprofiled_ms=unprofiled_ms, causes=causes)
        if aligned.schedules:
            report = pipeline_schedule.add_micro_batch_fixes(report, aligned.schedules, causes)
    fixes = fixes_without_unnamed(report.fixes, aligned.views)
    return replace(report, fixes=fixes, warnings=[*report.warnings, *context.notices])


def replay_model(views: Sequence[RankView]) -> ReplayModel | None:
    """What-if: the whole job as a graph that can be replayed; None where the traces do not allow it."""
    return explain_job(views, MeshSizes()).replay_model()
