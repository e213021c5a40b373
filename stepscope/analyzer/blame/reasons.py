"""Which kind of a cause is it, and which numbers say so?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stepscope.analyzer.blame.host_reasons import why_blocked, why_host_is_late
from stepscope.analyzer.blame.loader_reasons import why_data_is_late
from stepscope.analyzer.blame.root_causes import CauseTable
from stepscope.analyzer.blame.straggler_reasons import why_slower
from stepscope.analyzer.communication import TransferFault
from stepscope.analyzer.rank_view import RankView
from stepscope.core.analysis import Evidence, Pipeline
from stepscope.core.causes import Cause, Reason

NAMED_FROM = 0.10
"""A loss is named as the cause from this share of the step on; below it the job is healthy (ledger, Verdict)."""

MOSTLY_UNKNOWN = 0.5
"""From this share of exposed communication on that cannot be told from waiting, it may be somebody's lateness."""

Found = tuple[list[Reason], list[Evidence]]


@dataclass(frozen=True, slots=True)
class Grounds:
    """What reasons are found on.

    Attributes:
        table: root causes with the ranks to blame.
        arrivals_unknown: share of the job's time in which waiting could not be told from transfer.
        oversubscribed: more runnable ranks than cores.
        movable: share of the job's time that changes between waiting and transfer within the clocks' residual.
        communication: what is wrong with the exposed transfers.
        data_waits_ns: by rank, how long each step waited for its data, where the run kept that.
    """

    views: Mapping[int, RankView]
    table: CauseTable
    pipeline: Pipeline | None
    arrivals_unknown: float = 0.0
    oversubscribed: bool = False
    movable: float = 0.0
    communication: Sequence[TransferFault] = ()
    data_waits_ns: Mapping[int, Sequence[int]] = field(default_factory=dict)

    def to_blame(self, cause: Cause) -> list[RankView]:
        """Views of the ranks to blame for a cause, worst first."""
        return [self.views[rank] for rank in self.table.ranks_of(cause)]


def reasons_of(cause: Cause, grounds: Grounds) -> Found:
    """Reasons of a cause, the strongest first, and the evidence of both."""
    reasons, evidence = _FIND[cause](grounds) if cause in _FIND else ([], [])
    return reasons, [*_evidence_of(cause, grounds), *evidence]


def _communication(grounds: Grounds) -> Found:
    reasons = [reason for reason, _ in grounds.communication]
    evidence = [item for _, items in grounds.communication for item in items]
    if grounds.arrivals_unknown > 0:
        is_mostly = grounds.arrivals_unknown > MOSTLY_UNKNOWN * grounds.table.fractions()[Cause.COMMUNICATION]
        reasons.insert(0 if is_mostly else len(reasons), Reason.ARRIVALS_UNKNOWN)
        evidence.append(Evidence("arrivals_unknown", grounds.arrivals_unknown, "ratio"))
    return reasons, evidence


def _host(grounds: Grounds) -> Found:
    reasons, evidence = why_host_is_late(grounds.to_blame(Cause.HOST_BOUND))
    return ([*reasons, Reason.CPU_LIMITED] if grounds.oversubscribed else reasons), evidence


def _imbalance(grounds: Grounds) -> Found:
    if grounds.pipeline is not None and grounds.pipeline.imbalance > 0:
        return [Reason.UNEVEN_STAGES], []
    return [Reason.UNEVEN_BATCHES], []


def _loading(grounds: Grounds) -> Found:
    return why_data_is_late(grounds.to_blame(Cause.DATA_LOADING), grounds.data_waits_ns)


def _straggler(grounds: Grounds) -> Found:
    late = grounds.table.ranks_of(Cause.STRAGGLER)
    return why_slower([grounds.views[rank] for rank in late], [v for r, v in grounds.views.items() if r not in late])


_FIND: dict[Cause, Callable[[Grounds], Found]] = {
    Cause.COMMUNICATION: _communication,
    Cause.DATA_LOADING: _loading,
    Cause.HOST_BOUND: _host,
    Cause.IMBALANCE: _imbalance,
    Cause.PIPELINE_BUBBLE: lambda _: ([Reason.FEW_MICRO_BATCHES], []),
    Cause.STRAGGLER: _straggler,
    Cause.SYNCHRONIZATION: lambda grounds: why_blocked(grounds.to_blame(Cause.SYNCHRONIZATION)),
}


def _evidence_of(cause: Cause, grounds: Grounds) -> list[Evidence]:
    table, pipeline = grounds.table, grounds.pipeline
    evidence = [Evidence("fraction_of_step", table.fractions()[cause], "ratio", NAMED_FROM)]
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
