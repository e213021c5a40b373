"""Reasons of each cause with the numbers that show them: late host, blocked host, data loader, communication.

Loader reasons: A loader with w workers that is too slow, but not by much, delivers w batches quickly and then stalls:
waits come with period w (a real report: "freezes every num_workers iterations"). A loader that is far too slow makes
every step wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.blame.root_causes import CauseTable
from stepscope.analyzer.blame.stragglers import why_slower
from stepscope.analyzer.communication import TransferFault
from stepscope.analyzer.rank_view import RankView
from stepscope.core.documents.analysis import Pipeline
from stepscope.core.documents.evidence import Evidence
from stepscope.core.vocabulary.causes import Cause, Reason

REASON_THRESHOLD = 0.20
"""A reason is named from this share of its cause's time on, on the ranks to blame; the largest always is."""


def why_host_is_late(late: Sequence[RankView]) -> tuple[list[Reason], list[Evidence]]:
    """By what was open on the host's threads while the device idled for them, and in which phase of the script."""
    time, phases = Counter[Reason](), Counter[str]()
    for view in late:
        time.update(view.host_work.late_ns)
        phases.update(view.host_work.phases_ns)
    reasons, evidence = _reasons_by_time(time, "late_host_time")
    total = time.total()
    told = [
        Evidence(f"share_of_late_host_time_in_phase: {phase}", share, "ratio", REASON_THRESHOLD)
        for phase, spent in phases.most_common()
        if (share := spent / total) >= REASON_THRESHOLD
    ]
    return reasons, [*evidence, *told]


def why_blocked(blocked: Sequence[RankView]) -> tuple[list[Reason], list[Evidence]]:
    """By the kind of call that each idle span followed, with how often a step makes such calls."""
    time, calls = Counter[Reason](), Counter[Reason]()
    for view in blocked:
        time.update(view.host_work.blocked_ns)
        calls.update(view.host_work.num_blocking_calls)
    reasons, evidence = _reasons_by_time(time, "blocked_time")
    num_steps = sum(len(view.window.boundary_ns) for view in blocked)
    counts = [Evidence(f"blocking_calls_a_step: {reason}", calls[reason] / num_steps, "calls") for reason in reasons]
    return reasons, [*evidence, *counts]


def _reasons_by_time(time: Counter[Reason], of_what: str) -> tuple[list[Reason], list[Evidence]]:
    total = time.total()
    shares = [(reason, nanoseconds / total) for reason, nanoseconds in time.most_common() if total]
    named = [(reason, share) for place, (reason, share) in enumerate(shares) if not place or share >= REASON_THRESHOLD]
    return (
        [reason for reason, _ in named],
        [Evidence(f"share_of_{of_what}: {reason}", share, "ratio", REASON_THRESHOLD) for reason, share in named],
    )


MIN_BATCHES = 12
"""Fewer show no rhythm: a trace of three steps does not, a run that keeps its steps does."""

MAX_STEADY_SPREAD = 0.5
"""Waits whose standard deviation is under this share of their mean are the same at every batch."""

MIN_CORRELATION = 0.5
"""Least correlation of the waits with themselves one period later; chance stays under 0.35 on 60 batches."""

MIN_PERIODS = 3


def why_data_is_late(
    late: Sequence[RankView], waits_by_rank: Mapping[int, Sequence[int]]
) -> tuple[list[Reason], list[Evidence]]:
    """Reasons by the ranks that waited for their own loader.

    Args:
        late: their views, worst first.
        waits_by_rank: waits of each step as the run kept them (hundreds of steps); else the trace's few must do.
    """
    if not late:
        return [Reason.STARVED], []
    worst = late[0]
    waits = np.array(waits_by_rank.get(worst.rank, worst.host_work.load_waits_ns), np.int64)
    reasons, evidence = _loader_pattern(waits, worst.rank)
    if any(view.host_work.loads_in_process for view in late):
        reasons.append(Reason.NO_WORKERS)
    return reasons, evidence


def _loader_pattern(waits_ns: npt.NDArray[np.int64], rank: int) -> tuple[list[Reason], list[Evidence]]:
    if len(waits_ns) < MIN_BATCHES or not waits_ns.any():
        return [Reason.STARVED], []
    # one endless wait (an epoch's end, a cold cache) would drown the rest
    waits = np.minimum(waits_ns, np.quantile(waits_ns, 0.95, method="higher")).astype(np.float64)
    spread = float(waits.std() / waits.mean())
    uneven = Evidence("spread_of_waits", spread, "of the mean wait", MAX_STEADY_SPREAD, ranks=[rank])
    if spread < MAX_STEADY_SPREAD:
        return [Reason.STARVED], [uneven]
    period, correlation = _period(waits - waits.mean())
    if correlation < MIN_CORRELATION:
        return [Reason.BURSTY], [uneven]
    return [Reason.BURSTY], [uneven, Evidence("period_of_waits", period, "batches", ranks=[rank])]


def _period(deviation: npt.NDArray[np.float64]) -> tuple[int, float]:
    """The shortest lag at which the series repeats itself nearly as well as at any other, and how well."""
    size = len(deviation)
    lags = np.arange(2, size // MIN_PERIODS + 1)
    correlations = np.array([np.corrcoef(deviation[lag:], deviation[:-lag])[0, 1] for lag in lags])
    correlations = np.nan_to_num(correlations, nan=-1.0)
    best = float(correlations.max())
    return int(lags[np.argmax(correlations >= 0.9 * best)]), best


BOTTLENECK_THRESHOLD = 0.10
"""A loss is named as the cause from this share of the step on; below it the job is healthy (ledger, Verdict)."""

MOSTLY_UNKNOWN_SHARE = 0.5
"""From this share of exposed communication on that cannot be told from waiting, it may be somebody's lateness."""

ReasonsWithEvidence = tuple[list[Reason], list[Evidence]]


@dataclass(frozen=True, slots=True)
class VerdictInputs:
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


def reasons_of(cause: Cause, grounds: VerdictInputs) -> ReasonsWithEvidence:
    """Reasons of a cause, the strongest first, and the evidence of both."""
    reasons, evidence = _REASONS_OF_CAUSE[cause](grounds) if cause in _REASONS_OF_CAUSE else ([], [])
    return reasons, [*_evidence_of(cause, grounds), *evidence]


def _communication(grounds: VerdictInputs) -> ReasonsWithEvidence:
    reasons = [reason for reason, _ in grounds.communication]
    evidence = [item for _, items in grounds.communication for item in items]
    if grounds.arrivals_unknown > 0:
        is_mostly = grounds.arrivals_unknown > MOSTLY_UNKNOWN_SHARE * grounds.table.fractions()[Cause.COMMUNICATION]
        reasons.insert(0 if is_mostly else len(reasons), Reason.ARRIVALS_UNKNOWN)
        evidence.append(Evidence("arrivals_unknown", grounds.arrivals_unknown, "ratio"))
    return reasons, evidence


def _host(grounds: VerdictInputs) -> ReasonsWithEvidence:
    reasons, evidence = why_host_is_late(grounds.to_blame(Cause.HOST_BOUND))
    return ([*reasons, Reason.CPU_LIMITED] if grounds.oversubscribed else reasons), evidence


def _imbalance(grounds: VerdictInputs) -> ReasonsWithEvidence:
    if grounds.pipeline is not None and grounds.pipeline.imbalance > 0:
        return [Reason.UNEVEN_STAGES], []
    return [Reason.UNEVEN_BATCHES], []


def _loading(grounds: VerdictInputs) -> ReasonsWithEvidence:
    return why_data_is_late(grounds.to_blame(Cause.DATA_LOADING), grounds.data_waits_ns)


def _straggler(grounds: VerdictInputs) -> ReasonsWithEvidence:
    late = grounds.table.ranks_of(Cause.STRAGGLER)
    return why_slower([grounds.views[rank] for rank in late], [v for r, v in grounds.views.items() if r not in late])


_REASONS_OF_CAUSE: dict[Cause, Callable[[VerdictInputs], ReasonsWithEvidence]] = {
    Cause.COMMUNICATION: _communication,
    Cause.DATA_LOADING: _loading,
    Cause.HOST_BOUND: _host,
    Cause.IMBALANCE: _imbalance,
    Cause.PIPELINE_BUBBLE: lambda _: ([Reason.FEW_MICRO_BATCHES], []),
    Cause.STRAGGLER: _straggler,
    Cause.SYNCHRONIZATION: lambda grounds: why_blocked(grounds.to_blame(Cause.SYNCHRONIZATION)),
}


def _evidence_of(cause: Cause, grounds: VerdictInputs) -> list[Evidence]:
    table, pipeline = grounds.table, grounds.pipeline
    evidence = [Evidence("fraction_of_step", table.fractions()[cause], "ratio", BOTTLENECK_THRESHOLD)]
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
