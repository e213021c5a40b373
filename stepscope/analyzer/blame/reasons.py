"""Reasons of each cause with the numbers that show them: late host, blocked host, data loader, communication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.blame.advice import Advice
from stepscope.analyzer.blame.remedies import remedies_by_function
from stepscope.analyzer.blame.root_causes import CauseTable
from stepscope.analyzer.blame.stragglers import flops_above_peers, why_slower, work_of
from stepscope.analyzer.collectives.costs import TransferFault
from stepscope.analyzer.kernels.low_parallelism import LowParallelism
from stepscope.analyzer.missing_evidence import MissingEvidence
from stepscope.analyzer.rank_view import RankView
from stepscope.core.documents.analysis import AnalysedJob, Pipeline, RootCause, TraceQuality
from stepscope.core.vocabulary import Cause, Evidence, Reason, TimeCategory

REASON_THRESHOLD = 0.20
"""Least share of its cause's time, on the causing ranks, for a reason to be named; the largest always is."""


MAX_FUNCTIONS = 3


def why_host_is_late(late: Sequence[RankView]) -> tuple[list[Reason], list[Evidence]]:
    """Reasons by what ran on the host's threads while the device idled for them; the script's phases and functions."""
    time, phases, functions = Counter[Reason](), Counter[str](), Counter[str]()
    for view in late:
        time.update(view.host_work.late_ns)
        phases.update(view.host_work.phases_ns)
        functions.update(view.host_work.functions_ns)
    reasons, evidence = _reasons_by_time(time, "late_host_time")
    total = time.total()
    by_phase = [
        Evidence(f"share_of_late_host_time_in_phase: {phase}", share, "ratio", REASON_THRESHOLD)
        for phase, spent in phases.most_common()
        if (share := spent / total) >= REASON_THRESHOLD
    ]
    by_function = [
        Evidence(f"share_of_late_host_time_in_function: {name}", share, "ratio")
        for name, share in _main_functions(functions, total)
    ]
    return reasons, [*evidence, *by_phase, *by_function]


def _main_functions(time: Counter[str], total: int) -> list[tuple[str, float]]:
    """The function with most of the time, and others with much, with their shares; empty without recorded stacks."""
    shares = [(name, spent / total) for name, spent in time.most_common(MAX_FUNCTIONS) if total]
    return [(name, share) for place, (name, share) in enumerate(shares) if not place or share >= REASON_THRESHOLD]


def why_blocked(blocked: Sequence[RankView]) -> tuple[list[Reason], list[Evidence]]:
    """Reasons by the kind of call before each idle span, with the number of such calls per step."""
    time, calls, functions = Counter[Reason](), Counter[Reason](), Counter[str]()
    for view in blocked:
        time.update(view.host_work.blocked_ns)
        functions.update(view.host_work.blocking_functions_ns)
        calls.update(view.host_work.num_blocking_calls)
    reasons, evidence = _reasons_by_time(time, "blocked_time")
    num_steps = sum(len(view.window.boundary_ns) for view in blocked)
    counts = [Evidence(f"blocking_calls_a_step: {reason}", calls[reason] / num_steps, "calls") for reason in reasons]
    by_function = [
        Evidence(f"share_of_blocked_time_in_function: {name}", share, "ratio")
        for name, share in _main_functions(functions, functions.total())
    ]
    return reasons, [*evidence, *counts, *by_function]


def _reasons_by_time(time: Counter[Reason], of_what: str) -> tuple[list[Reason], list[Evidence]]:
    total = time.total()
    shares = [(reason, nanoseconds / total) for reason, nanoseconds in time.most_common() if total]
    named = [(reason, share) for place, (reason, share) in enumerate(shares) if not place or share >= REASON_THRESHOLD]
    return (
        [reason for reason, _ in named],
        [Evidence(f"share_of_{of_what}: {reason}", share, "ratio", REASON_THRESHOLD) for reason, share in named],
    )


MIN_BATCHES = 12
"""Fewer batches show no period: a trace of three steps does not, a run with step telemetry does."""

MAX_STEADY_SPREAD = 0.5
"""Waits with a standard deviation below this share of their mean are steady."""

MIN_CORRELATION = 0.5
"""Least autocorrelation of the waits at a period; chance stays under 0.35 on 60 batches."""

MIN_PERIODS = 3


def why_data_is_late(
    late: Sequence[RankView], waits_by_rank: Mapping[int, Sequence[int]]
) -> tuple[list[Reason], list[Evidence]]:
    """Reasons by the waits of the ranks that waited for their own loader.

    A loader with w workers that is a little too slow delivers w batches quickly and then stalls, so waits have period w
    ("freezes every num_workers iterations"). One that is far too slow makes every step wait.

    Args:
        late: views of these ranks, worst first.
        waits_by_rank: waits of each step from the run's telemetry (hundreds of steps); else those of the trace count.
    """
    if not late:
        return [Reason.STARVED], []
    worst = late[0]
    waits = np.array(waits_by_rank.get(worst.rank, worst.host_work.load_waits_ns), np.int64)
    reasons, evidence = loader_pattern(waits, worst.rank)
    if any(view.host_work.loads_in_process for view in late):
        reasons.append(Reason.NO_WORKERS)
    return reasons, evidence


def loader_pattern(waits_ns: npt.NDArray[np.int64], rank: int) -> tuple[list[Reason], list[Evidence]]:
    """Reason of a rank's waits for its data loader, in order of the batches, and the evidence of their pattern."""
    if len(waits_ns) < MIN_BATCHES or not waits_ns.any():
        return [Reason.STARVED], []
    # one very long wait (an epoch's end, a cold cache) would dominate the rest
    waits = np.minimum(waits_ns, np.quantile(waits_ns, 0.95, method="higher")).astype(np.float64)
    if not waits.any():  # less than one in twenty
        return [Reason.BURSTY], []
    spread = float(waits.std() / waits.mean())
    uneven = Evidence("spread_of_waits", spread, "of the mean wait", MAX_STEADY_SPREAD, ranks=[rank])
    if spread < MAX_STEADY_SPREAD:
        return [Reason.STARVED], [uneven]
    if not all(half.any() for half in np.array_split(waits, 2)):  # what comes back does so in both
        return [Reason.BURSTY], [uneven]
    period, correlation = _period(waits - waits.mean())
    if correlation < MIN_CORRELATION:
        return [Reason.BURSTY], [uneven]
    return [Reason.BURSTY], [uneven, Evidence("period_of_waits", period, "batches", ranks=[rank])]


def _period(deviation: npt.NDArray[np.float64]) -> tuple[int, float]:
    """The shortest lag with nearly the largest autocorrelation, and that correlation."""
    size = len(deviation)
    lags = np.arange(2, size // MIN_PERIODS + 1)
    with np.errstate(divide="ignore", invalid="ignore"):  # equal waits correlate with nothing
        correlations = np.array([np.corrcoef(deviation[lag:], deviation[:-lag])[0, 1] for lag in lags])
    correlations = np.nan_to_num(correlations, nan=-1.0)
    best = float(correlations.max())
    return int(lags[np.argmax(correlations >= 0.9 * best)]), best


BOTTLENECK_THRESHOLD = 0.10
"""Least share of the step for a loss to be named as the cause; below it the job is healthy."""

MOSTLY_UNKNOWN_SHARE = 0.5
"""Share of exposed communication that may be waiting from which on it may be a late rank."""

ReasonsWithEvidence = tuple[list[Reason], list[Evidence]]


@dataclass(frozen=True, slots=True)
class VerdictInputs:
    """Findings from which root causes, their reasons and the verdict follow.

    Attributes:
        table: root causes with the causing ranks.
        unexplained_loss: share of the job's time in which ranks waited or idled for an unknown cause; kernels with an
            unknown limit are not a loss.
        missing: what the traces lack, the largest first.
        arrivals_unknown: share of the job's time in which waiting and transfer could not be separated.
        oversubscribed: more runnable ranks than cores.
        movable: share of the job's time that a clock error of the residual moves between waiting and transfer.
        communication: faults of the exposed transfers.
        parallelism: kinds of latency-bound kernels; None without kernels.
        data_waits_ns: by rank, wait of each step for its data, from the run's telemetry.
        advice: what remedies have to know of the job.
    """

    job: AnalysedJob
    quality: TraceQuality
    views: Mapping[int, RankView]
    table: CauseTable
    pipeline: Pipeline | None
    unexplained_loss: float = 0.0
    missing: Sequence[MissingEvidence] = ()
    arrivals_unknown: float = 0.0
    oversubscribed: bool = False
    movable: float = 0.0
    communication: Sequence[TransferFault] = ()
    parallelism: LowParallelism | None = None
    data_waits_ns: Mapping[int, Sequence[int]] = field(default_factory=dict)
    advice: Advice = field(default_factory=Advice)

    def causing(self, cause: Cause) -> list[RankView]:
        """Views of the ranks that caused it, worst first."""
        return [self.views[rank] for rank in self.table.ranks_of(cause)]

    def own_remedies(self, row: RootCause) -> dict[Reason, str]:
        """Remedies of its reasons that depend on the job."""
        if row.cause is Cause.LATENCY_BOUND and self.parallelism is not None:
            return self.parallelism.remedies
        return remedies_by_function(row.evidence)

    def is_guess(self, row: RootCause) -> bool:
        """Whether a row is communication that may as well be waiting for a late rank."""
        return row.cause is Cause.COMMUNICATION and self.arrivals_unknown > MOSTLY_UNKNOWN_SHARE * row.fraction


def reasons_of(cause: Cause, inputs: VerdictInputs) -> ReasonsWithEvidence:
    """Reasons of a cause, the strongest first, and the evidence of both."""
    reasons, evidence = _REASONS_OF_CAUSE[cause](inputs) if cause in _REASONS_OF_CAUSE else ([], [])
    return reasons, [*_evidence_of(cause, inputs), *evidence]


def _communication(inputs: VerdictInputs) -> ReasonsWithEvidence:
    reasons = [reason for reason, _ in inputs.communication]
    evidence = [item for _, items in inputs.communication for item in items]
    if inputs.arrivals_unknown > 0:
        is_mostly = inputs.arrivals_unknown > MOSTLY_UNKNOWN_SHARE * inputs.table.fractions()[Cause.COMMUNICATION]
        reasons.insert(0 if is_mostly else len(reasons), Reason.ARRIVALS_UNKNOWN)
        evidence.append(Evidence("arrivals_unknown", inputs.arrivals_unknown, "ratio"))
    return reasons, evidence


def _host(inputs: VerdictInputs) -> ReasonsWithEvidence:
    reasons, evidence = why_host_is_late(inputs.causing(Cause.HOST_BOUND))
    return ([*reasons, Reason.CPU_LIMITED] if inputs.oversubscribed else reasons), evidence


def _imbalance(inputs: VerdictInputs) -> ReasonsWithEvidence:
    if inputs.pipeline is not None and inputs.pipeline.imbalance > 0:
        return [Reason.UNEVEN_STAGES], []
    heavy = inputs.table.ranks_of(Cause.IMBALANCE)
    others = [work_of(view) for rank, view in inputs.views.items() if rank not in heavy]
    ratios = {rank: flops_above_peers(work_of(inputs.views[rank]), others) for rank in heavy if others}
    known = {rank: ratio for rank, ratio in ratios.items() if ratio is not None}
    evidence = [Evidence("flops_above_peers", max(known.values()), "times", ranks=list(known))] if known else []
    return [Reason.UNEVEN_BATCHES], evidence


def _loading(inputs: VerdictInputs) -> ReasonsWithEvidence:
    return why_data_is_late(inputs.causing(Cause.DATA_LOADING), inputs.data_waits_ns)


def _straggler(inputs: VerdictInputs) -> ReasonsWithEvidence:
    late = inputs.table.ranks_of(Cause.STRAGGLER)
    return why_slower([inputs.views[rank] for rank in late], [v for r, v in inputs.views.items() if r not in late])


LONG_GAP_NS = 1_000_000
"""A launch takes microseconds: whatever keeps queued work from starting for so long is not in the trace."""
MOSTLY_NOT_STARTED_SHARE = 0.5


def _gaps(inputs: VerdictInputs) -> ReasonsWithEvidence:
    gaps = [view.segments.intervals_of(TimeCategory.DEVICE_GAP) for view in inputs.views.values()]
    lengths = np.concatenate([own.end - own.start for own in gaps])
    share = float(lengths[lengths >= LONG_GAP_NS].sum() / max(lengths.sum(), 1))
    if share < MOSTLY_NOT_STARTED_SHARE:
        return [], []
    return [Reason.NOT_STARTED], [Evidence("not_started_share_of_gaps", share, "ratio", MOSTLY_NOT_STARTED_SHARE)]


_REASONS_OF_CAUSE: dict[Cause, Callable[[VerdictInputs], ReasonsWithEvidence]] = {
    Cause.COMMUNICATION: _communication,
    Cause.DATA_LOADING: _loading,
    Cause.DEVICE_GAP: _gaps,
    Cause.HOST_BOUND: _host,
    Cause.IMBALANCE: _imbalance,
    Cause.LATENCY_BOUND: lambda inputs: ([], []) if inputs.parallelism is None else inputs.parallelism.reasons(),
    Cause.PIPELINE_BUBBLE: lambda _: ([Reason.FEW_MICRO_BATCHES], []),
    Cause.STRAGGLER: _straggler,
    Cause.SYNCHRONIZATION: lambda inputs: why_blocked(inputs.causing(Cause.SYNCHRONIZATION)),
}


def _evidence_of(cause: Cause, inputs: VerdictInputs) -> list[Evidence]:
    table, pipeline = inputs.table, inputs.pipeline
    evidence = [Evidence("fraction_of_step", table.fractions()[cause], "ratio", BOTTLENECK_THRESHOLD)]
    by_rank = table.caused_ns.get(cause, {})
    total = sum(by_rank.values())
    ranks = table.ranks_of(cause)
    if total > 0 and 0 < len(ranks) < len(by_rank):
        share = sum(by_rank[rank] for rank in ranks) / total
        evidence.append(Evidence("share_caused_by_these_ranks", share, "ratio", ranks=ranks))
    if cause in (Cause.PIPELINE_BUBBLE, Cause.IMBALANCE) and pipeline is not None:
        evidence.append(Evidence("pipeline_structural", pipeline.structural, "ratio"))
        evidence.append(Evidence("pipeline_imbalance", pipeline.imbalance, "ratio"))
        evidence.append(Evidence("pipeline_textbook", pipeline.textbook, "ratio"))
    return evidence
