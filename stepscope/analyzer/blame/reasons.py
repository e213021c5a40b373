"""Which kind of a cause is it, and which numbers say so?"""

from __future__ import annotations

from stepscope.analyzer.blame.root_causes import CauseTable
from stepscope.core.analysis import Evidence, Pipeline
from stepscope.core.causes import Cause, Reason

NAMED_FROM = 0.10
"""A loss is named as the cause from this share of the step on; below it the job is healthy (ledger, Verdict)."""


def reasons_of(cause: Cause, pipeline: Pipeline | None, arrivals_unknown: float) -> list[Reason]:
    if cause is Cause.PIPELINE_BUBBLE:
        return [Reason.FEW_MICRO_BATCHES]
    if cause is Cause.IMBALANCE and pipeline is not None and pipeline.imbalance > 0:
        return [Reason.UNEVEN_STAGES]
    if cause is Cause.COMMUNICATION and arrivals_unknown > 0:
        return [Reason.ARRIVALS_UNKNOWN]
    if cause is Cause.DATA_LOADING:
        return [Reason.STARVED]
    if cause is Cause.HOST_BOUND:
        return [Reason.DISPATCH]
    if cause is Cause.STRAGGLER:
        return [Reason.EXTRA_WORK]
    return []


def evidence_of(cause: Cause, fraction: float, table: CauseTable, pipeline: Pipeline | None) -> list[Evidence]:
    evidence = [Evidence("fraction_of_step", fraction, "ratio", NAMED_FROM)]
    culprits = table.culprits.get(cause, {})
    total = sum(culprits.values())
    ranks = table.ranks_of(cause)
    if total > 0 and 0 < len(ranks) < len(culprits):
        share = sum(culprits[rank] for rank in ranks) / total
        evidence.append(Evidence("share_caused_by_these_ranks", share, "ratio", ranks=ranks))
    if cause in (Cause.PIPELINE_BUBBLE, Cause.IMBALANCE) and pipeline is not None:
        evidence.append(Evidence("pipeline_structural", pipeline.structural, "ratio"))
        evidence.append(Evidence("pipeline_imbalance", pipeline.imbalance, "ratio"))
        evidence.append(Evidence("pipeline_textbook", pipeline.textbook, "ratio"))
    return evidence
