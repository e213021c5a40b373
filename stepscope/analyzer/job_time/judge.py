"""Judge of a job's training time: which loss the verdict names, how sure that is, and the step without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stepscope.analyzer.blame.advice import Advice
from stepscope.analyzer.blame.reasons import BOTTLENECK_THRESHOLD, REASON_THRESHOLD
from stepscope.analyzer.blame.remedies import actions_for, functions_in, remedies_by_function
from stepscope.analyzer.job_time.job_losses import HOST_CAUSES, MEANS_OF_RANKS, JobLosses
from stepscope.analyzer.job_time.loader import LoaderFindings
from stepscope.analyzer.job_time.loss import BOUND, REPLAY, TELEMETRY, Loss
from stepscope.analyzer.job_time.steps import HostLoss, interval_of
from stepscope.analyzer.job_time.training_time import TrainingTime
from stepscope.analyzer.job_time.unexplained_steps import action_for, evidence_of
from stepscope.analyzer.resampling import resampled_places
from stepscope.analyzer.verdict import SECONDARY_THRESHOLD
from stepscope.core.documents.analysis import Analysis, NextCause, PredictedFix, RootCause, SecondaryCause, Verdict
from stepscope.core.text.numbers import counted, form, listed, ranks_words
from stepscope.core.text.trace_quality import NOTABLE_DISTORTION
from stepscope.core.text.wording import SHOWN_FROM, busy_on_cpu, in_sentence, is_on_cpu, training_category_title
from stepscope.core.vocabulary import HEALTHY_CAUSES, Cause, Evidence, Reason

SEEN_CONFIDENCE = 0.97
"""Confidence in a loss that the records of all steps measured."""
UNMEASURED_EXPOSURE_CONFIDENCE = 0.93
"""The same on GPUs where waits were measured on the host alone, within the time in which the GPU can have been idle."""
CALIBRATED_CONFIDENCE = 0.93
"""Confidence in a loss that the calibrated replay of a light capture saves."""
BOUND_CONFIDENCE = 0.85
"""Most in a loss of which only bounds are known: a capture that slowed the host, steps without a capture."""
INFERRED_CONFIDENCE = 0.7
"""Most in a cause that nothing recorded names."""
RIVALLED_CONFIDENCE = 0.6
"""Most in a loss that is within its bounds smaller than another."""
OVERSUBSCRIBED_CONFIDENCE = 0.85
"""Most where ranks queue for cores: their waits contain the queue."""
LARGE_DISTORTION = 1.5
"""Relative difference of captured steps from what the records leave of a step at which one of the two is wrong: no
profiler slows a step so much."""
CONTRADICTED_CONFIDENCE = 0.65
"""Most where records and capture contradict each other so far."""
FLOOR_ERROR = 0.03
"""Of the GPU's work of a step, which bounds what a fix can reach: kernels are not the same in every step."""
FEW_STEPS = 8
FEW_STEPS_CONFIDENCE = 0.8
MIN_STEPS_WITHOUT_TRACE = 3
"""Fewer settled steps do not show how a job runs."""
TELEMETRY_ERROR = 0.15
"""Largest error of the step predicted from telemetry, on recorded pairs of runs with and without the fault."""


@dataclass(frozen=True, slots=True)
class Judge:
    """The verdict's inputs: the analysis of the capture, the job's training time, its losses and its loader.

    Attributes:
        loader: None where no time is lost to waiting for data.
        num_cpus: processors that a rank may use; None where unknown.
        advice: what remedies have to know of the job.
        are_contradicted: counters contradict the breakdown.
    """

    analysis: Analysis
    training: TrainingTime
    losses: JobLosses
    loader: LoaderFindings | None
    num_cpus: int | None
    advice: Advice = field(default_factory=Advice)
    are_contradicted: bool = False

    def verdict(self) -> Verdict:
        """The largest loss of training time, if it is at least a tenth; else what bounds the job's work."""
        verdict = self._verdict()
        return replace(verdict, confidence=min(verdict.confidence, self._most_confidence(verdict)))

    def _verdict(self) -> Verdict:
        losses = self.losses
        if self._has_too_few_steps():
            return self._unknown()
        wasted = losses.wasted_share
        largest = self._largest()
        share = 0.0 if largest is None else losses.share(largest.most_gain_ms)
        if wasted >= BOTTLENECK_THRESHOLD and wasted >= share:
            return self._wasted()
        if largest is not None and share >= BOTTLENECK_THRESHOLD:
            is_shown = largest.basis == TELEMETRY or self._is_untraced
            if is_shown or not self._is_doubtful():
                return self._lost(largest)
        return self._unknown() if self._is_doubtful() else self._no_bottleneck()

    def _largest(self) -> Loss | None:
        """The largest loss; without a trace, of those that the step records show."""
        threshold = BOTTLENECK_THRESHOLD if self._is_untraced else 0.0
        shown = (
            loss
            for loss in self.losses.losses
            if loss.basis == TELEMETRY or self.losses.share(loss.least_ms or 0.0) >= threshold
        )
        return next(shown, None)

    def _most_confidence(self, verdict: Verdict) -> float:
        """Most confidence in a verdict, by the number of steps, the capture's likeness to them, and what is unknown."""
        most = 1.0 if self.training.num_settled >= FEW_STEPS else FEW_STEPS_CONFIDENCE
        is_contradicted = abs(self.losses.distortion or 0.0) > LARGE_DISTORTION
        if (is_contradicted or self.are_contradicted) and self.losses.wasted_share < 1:
            most = min(most, CONTRADICTED_CONFIDENCE)
        if self._is_untraced and self._unattributed() > (verdict.share or 0.0):  # it may hold a larger loss
            most = min(most, BOUND_CONFIDENCE)
        return most

    @property
    def _is_untraced(self) -> bool:
        """Whether the job has no trace."""
        return not self.analysis.ranks

    def _is_doubtful(self) -> bool:
        """Whether the traces forbid a verdict."""
        return self.analysis.verdict.cause is Cause.INSUFFICIENT_EVIDENCE

    def _has_too_few_steps(self) -> bool:
        """Whether the records are too few for a verdict without a trace."""
        return self._is_untraced and self.training.num_settled < MIN_STEPS_WITHOUT_TRACE

    def _unattributed(self) -> float:
        """Share of training time that is the job's own work or a loss, nobody knows which."""
        return self.losses.share(self.losses.work_ms.get(Cause.UNEXPLAINED, 0.0))

    def _unknown(self) -> Verdict:
        """The verdict where traces forbid one, or where there are none and the step records show no large loss."""
        verdict = replace(self.analysis.verdict, bottleneck=None)
        if not self._is_untraced:
            return verdict
        unattributed = self._unattributed()
        largest = next((loss for loss in self.losses.losses if loss.recorded is not None), None)
        what = f"no profiled step can be analysed, and {unattributed:.1%} of training time has no recorded cause"
        if largest is not None and self.losses.share(largest.ms) >= SHOWN_FROM:
            what += f"; the largest recorded loss is {self.losses.share(largest.ms):.1%} ({self._title(largest)})"
        if self._has_too_few_steps():
            num_steps = counted(self.training.num_steps, "step")
            num_settled = self.training.num_settled
            what = f"no profiled step can be analysed, and only {num_settled} of {num_steps} may stand for the job"
        evidence = Evidence("unexplained", unattributed, "ratio", BOTTLENECK_THRESHOLD)
        return replace(verdict, summary=what, evidence=[evidence], secondary=self._secondary(None))

    def _wasted_reasons(self) -> dict[Reason, str]:
        """Why steps were wasted, the most frequent first, and how many were."""
        steps = self.training.steps
        wasted = {
            Reason.OVERFLOW: (steps.has_overflowed, "update skipped", "updates skipped"),
            Reason.NON_FINITE: (steps.is_skipped & ~steps.has_overflowed, "loss not finite", "losses not finite"),
            Reason.REPEATED: (self.training.is_lost & ~steps.is_skipped, "step repeated", "steps repeated"),
        }
        numbers = {reason: int(which.sum()) for reason, (which, *_) in wasted.items() if which.any()}
        ordered = sorted(numbers, key=lambda reason: -numbers[reason])
        return {reason: counted(numbers[reason], *wasted[reason][1:]) for reason in ordered}

    def _wasted_text(self) -> str:
        what = ", ".join([*self._wasted_reasons().values(), counted(len(self.training.steps), "step")])
        return f"Wasted steps: {self.losses.wasted_share:.1%} of training time ({what})"

    def _wasted(self) -> Verdict:
        losses, reasons = self.losses, list(self._wasted_reasons())
        action = actions_for(Cause.WASTED_STEPS, reasons, advice=self.advice)
        useful = 1.0 - losses.wasted_share
        fix = PredictedFix(action[0], losses.step_ms, 1.0 / useful, TELEMETRY_ERROR, TELEMETRY) if useful > 0 else None
        return Verdict(
            cause=Cause.WASTED_STEPS,
            reasons=reasons,
            confidence=self._seen(None),
            summary=self._wasted_text(),
            ranks=[],
            evidence=[
                Evidence("share_of_training_time", losses.wasted_share, "ratio", BOTTLENECK_THRESHOLD),
                *self._shared(),
            ],
            actions=action,
            secondary=self._secondary(None, has_wasted=False) if useful > 0 else [],
            bottleneck=True,
            share=losses.wasted_share,
            fix=fix,
            next=self._next(None, has_wasted=False) if useful > 0 else None,
        )

    def _lost(self, loss: Loss) -> Verdict:
        losses = self.losses
        share = losses.share(loss.gain_ms)
        reasons, evidence = self._reasons(loss)
        ranks = loss.ranks or ([] if loss.basis == TELEMETRY else self._ranks_of(loss.cause))
        actions = self._actions(loss, reasons)
        where = (
            f" on {form(len(ranks), 'rank')} {listed(ranks)}" if 0 < len(ranks) < self.analysis.job.world_size else ""
        )
        observed = f"{self.training.num_settled} of {counted(self.training.num_steps, 'step')} observed"
        inferred = " (inferred: nothing recorded names it)" if loss.is_inferred else ""
        return Verdict(
            cause=loss.cause,
            reasons=reasons,
            confidence=self._confidence(loss),
            summary=f"{self._title(loss)}{where}: {self._cost(loss)}, {observed}{inferred}{self._overlap(loss)}",
            ranks=ranks,
            evidence=[*self._shares(loss, ranks), *evidence, *self._shared()],
            actions=actions,
            secondary=self._secondary(loss),
            bottleneck=True,
            share=share,
            fix=self._fix(loss, actions),
            next=self._next(loss),
        )

    def _shares(self, loss: Loss, ranks: list[int]) -> list[Evidence]:
        """What a loss gains alone, and where that is less than a bottleneck, with what it hides and what hides it."""
        alone = self.losses.share(loss.gain_ms)
        if alone >= BOTTLENECK_THRESHOLD:
            return [Evidence("share_of_training_time", alone, "ratio", BOTTLENECK_THRESHOLD, ranks)]
        whole = self.losses.share(loss.most_gain_ms)
        return [
            Evidence("share_of_training_time", alone, "ratio", ranks=ranks),
            Evidence("share_with_overlap", whole, "ratio", BOTTLENECK_THRESHOLD, ranks),
        ]

    def _shared(self) -> list[Evidence]:
        """How much of what two causes gain is the same time, where it is much."""
        shared = self.losses.shared_share
        return [Evidence("shared_with_another_cause", shared, "ratio")] if shared > SECONDARY_THRESHOLD else []

    def _no_bottleneck(self) -> Verdict:
        losses = self.losses
        rows = self._rows()
        work = {cause: own for cause, own in losses.work_ms.items() if cause in HEALTHY_CAUSES}
        if not work:
            return replace(self.analysis.verdict, bottleneck=False)
        cause = max(work, key=lambda one: work[one])
        row = rows.get(cause)
        reasons = list(row.reasons) if row else []
        mfu = "" if self.analysis.job.mfu is None else f" at {self.analysis.job.mfu:.0%} MFU"
        largest = losses.losses[0] if losses.losses else None
        on_cpu = is_on_cpu(self.analysis.job)
        largest_words = "" if largest is None else self._title(largest)
        less = "" if largest is None else f"; largest loss {losses.share(largest.ms):.1%} ({largest_words})"
        own = self.analysis.verdict
        confidence = own.confidence if own.cause is cause else min(own.confidence, BOUND_CONFIDENCE)
        share = losses.share(work[cause])
        work_words = f"no bottleneck: {share:.1%} of training time is {cause.value.replace('_', '-')} work{mfu}"
        return Verdict(
            cause=cause,
            reasons=reasons,
            confidence=confidence,
            summary=f"{busy_on_cpu(share, 'training time') if on_cpu else work_words}{less}",
            ranks=[],
            evidence=[Evidence("share_of_training_time", share, "ratio"), *(row.evidence[1:] if row else [])],
            actions=actions_for(cause, reasons, advice=self.advice),
            secondary=self._secondary(None),
            bottleneck=False,
            share=share,
            fix=None,
            next=self._next(None),
        )

    def _title(self, loss: Loss) -> str:
        return training_category_title(loss.category, self.analysis.job)

    def _rows(self) -> Mapping[Cause, RootCause]:
        return {row.cause: row for row in self.analysis.root_causes}

    def _ranks_of(self, cause: Cause) -> list[int]:
        row = self._rows().get(cause)
        return list(row.ranks) if row else []

    def _reasons(self, loss: Loss) -> tuple[list[Reason], list[Evidence]]:
        """Reasons of a loss, those by counters first, and their evidence."""
        reasons, evidence = self._own_reasons(loss)
        if loss.counted is None:
            return reasons, evidence
        known = {item.metric for item in loss.counted.evidence}
        others = [item for item in evidence if item.metric not in known]
        return list(dict.fromkeys([*loss.counted.reasons, *reasons])), [*others, *loss.counted.evidence]

    def _own_reasons(self, loss: Loss) -> tuple[list[Reason], list[Evidence]]:
        row = self._rows().get(loss.cause)
        from_trace = ([], []) if row is None else (list(row.reasons), list(row.evidence[1:]))
        if loss.recorded is HostLoss.DATA_WAIT and self.loader is not None:
            in_process = [reason for reason in from_trace[0] if reason is Reason.NO_WORKERS]
            return list(dict.fromkeys([*self.loader.reasons, *in_process])), self.loader.evidence
        if loss.recorded is HostLoss.LATENESS:
            return from_trace
        if loss.basis == TELEMETRY or loss.recorded is not None:
            return loss.reasons, evidence_of(self.training, loss) if loss.cause is Cause.UNEXPLAINED else []
        if loss.cause is Cause.HOST_BOUND and self._has_one_core():
            evidence = [Evidence("usable_cpus", float(self.num_cpus or 1), "")]
            return [Reason.CPU_LIMITED, *from_trace[0]], [*evidence, *from_trace[1]]
        if loss.cause is Cause.HOST_BOUND and self._run_delay_ms() >= REASON_THRESHOLD * loss.ms:
            return list(dict.fromkeys([*from_trace[0], Reason.CPU_LIMITED])), from_trace[1]
        return [*loss.reasons, *(r for r in from_trace[0] if r not in loss.reasons)], from_trace[1]

    def _has_one_core(self) -> bool:
        """Whether the threads of a rank that launch work (the loop's, autograd's) share one core."""
        return self.num_cpus == 1 and self.analysis.job.device_kind == "gpu"

    def _run_delay_ms(self) -> float:
        """For how much of a step launching threads had no CPU."""
        return sum(loss.ms for loss in self.losses.losses if loss.recorded is HostLoss.RUN_DELAY)

    def _actions(self, loss: Loss, reasons: Sequence[Reason]) -> list[str]:
        row = self._rows().get(loss.cause)
        own = {} if row is None else remedies_by_function(row.evidence)
        if loss.recorded is HostLoss.DATA_WAIT and self.loader is not None and self.advice.has_worker_loader:
            known = {Reason.NO_WORKERS} if self.advice.loader is not None else set[Reason]()
            own = {**own, **dict.fromkeys({Reason.STARVED, Reason.BURSTY} | known, self.loader.action)}
        if Reason.GC in loss.reasons and len(loss.ranks) > 1:
            together = (
                "one gc.collect() on all ranks at the same step, gc.disable() in between, gc.freeze() after set-up"
            )
            own = {**own, Reason.GC: together}
        own = {**own, **(counted := _remedies_by_counters(loss))}
        if loss.cause is Cause.CONTENTION and counted and set(reasons) <= counted.keys():
            return [counted[reason] for reason in reasons]  # nothing is left to look for
        share = self.losses.share(loss.gain_ms)
        interval = None if loss.recorded is None else interval_of(self.training.steps, loss.recorded)
        actions = actions_for(loss.cause, reasons, own, advice=self.advice, share=share, interval=interval)
        if loss.cause is Cause.UNEXPLAINED and not loss.reasons:
            return [action_for(self.training.steps, self.training.slow), *actions][:3]
        return actions

    def _fix(self, loss: Loss, actions: Sequence[str]) -> PredictedFix | None:
        step_ms = self.losses.step_ms
        action = actions[0] if actions else ""
        if loss.least_ms is not None and loss.most_ms is not None:
            least_ms = (1.0 - FLOOR_ERROR) * max(step_ms - self.losses.irregular_ms - loss.most_ms, 0.0)
            bounds = self.losses.useful_ms(least_ms), self.losses.useful_ms(step_ms - loss.least_ms)
            return PredictedFix(action, None, None, None, BOUND, bounds)
        after = step_ms - loss.gain_ms
        if after <= 0:
            return None
        if loss.basis == REPLAY:
            return self._predicted(action, after, loss.error, REPLAY)
        if loss.basis == TELEMETRY or loss.is_inferred:
            return self._predicted(action, after, TELEMETRY_ERROR, TELEMETRY if loss.basis == TELEMETRY else "model")
        return self._replayed_loss(loss, action)

    def _predicted(self, action: str, after_ms: float, error: float | None, basis: str) -> PredictedFix:
        """The fix after which a step takes so long, by each step whose update lasts."""
        return PredictedFix(action, self.losses.useful_ms(after_ms), self.losses.step_ms / after_ms, error, basis)

    def _replayed_loss(self, loss: Loss, action: str) -> PredictedFix | None:
        """The step without a loss: a replay of the captured steps tells which part of it a fix recovers."""
        gain = next((gain for gain in self.analysis.what_if if gain.fix is loss.cause), None)
        row = self._rows().get(loss.cause)
        if gain is None or not gain.measured_step_ms or row is None or not row.ms_per_step:
            return None
        recovered = min(max((gain.measured_step_ms - gain.step_ms) / row.ms_per_step, 0.0), 1.0)
        gain_ms = loss.gain_ms if loss.alone_ms is not None else recovered * loss.ms
        return self._predicted(action, self.losses.step_ms - gain_ms, abs(gain.replay_error), REPLAY)

    def _next(self, named: Loss | None, *, has_wasted: bool = True) -> NextCause | None:
        """The largest other loss, also of wasted steps; one of the same cause only if its reasons are others."""
        taken = set() if named is None else {named.cause, *self._reasons(named)[0]}
        wasted_share = self.losses.wasted_share if has_wasted else 0.0
        others = [NextCause(Cause.WASTED_STEPS, wasted_share, list(self._wasted_reasons()))]
        for loss in self.losses.losses:
            reasons = self._reasons(loss)[0]
            if loss is not named and not {loss.cause, *reasons} <= taken:
                others.append(NextCause(loss.cause, self.losses.share(self._left_ms(loss)), reasons))
        largest = max(others, key=lambda other: other.share)
        return largest if largest.share > 0 else None

    def _secondary(self, named: Loss | None, *, has_wasted: bool = True) -> list[SecondaryCause]:
        """The largest other losses, by what is left of them once those that they overlap with are gone."""
        shares = []
        if has_wasted:
            wasted = SecondaryCause(Cause.WASTED_STEPS, self.losses.wasted_share, self._wasted_text())
            shares.append((wasted.fraction, wasted))
        for loss in self.losses.losses:
            text = f"{self._title(loss)}: {self._cost(loss)}{self._in_function(loss)}{self._overlap(loss)}"
            other = SecondaryCause(loss.cause, self.losses.share(loss.gain_ms), text)
            shares += [] if loss is named else [(self.losses.share(self._left_ms(loss)), other)]
        shares.sort(key=lambda pair: -pair[0])
        return [other for share, other in shares if share > SECONDARY_THRESHOLD][:3]

    def _in_function(self, loss: Loss) -> str:
        """Clause with the function in which most of a loss that the capture shows is spent; empty without stacks."""
        row = self._rows().get(loss.cause)
        functions = [] if row is None or loss.recorded is not None else functions_in(row.evidence)
        return f", {functions[0].value:.0%} of it in {functions[0].metric.partition(': ')[2]}" if functions else ""

    def _cost(self, loss: Loss) -> str:
        losses = self.losses
        gain_ms = loss.gain_ms
        return f"{losses.share(gain_ms):.1%} of training time ({gain_ms:,.1f} of {losses.step_ms:,.1f} ms per step)"

    def _overlap_ms(self, loss: Loss) -> float:
        """Time in which other ranks are held up by something else; 0 where it is little."""
        return loss.overlap_ms if self.losses.share(loss.overlap_ms) > SECONDARY_THRESHOLD else 0.0

    def _left_ms(self, loss: Loss) -> float:
        """What a loss takes once those that it overlaps with are gone."""
        return loss.gain_ms + self._overlap_ms(loss)

    def _overlap(self, loss: Loss) -> str:
        """Clause with that time, and what the others lose it to; and with what it has in common with other losses."""
        wasted = self.losses.wasted_share * self.losses.share(loss.gain_ms)
        if wasted > SECONDARY_THRESHOLD and not self._overlap_ms(loss):
            return f"; {wasted:.1%} of training time are in wasted steps as well"
        if loss.cause in MEANS_OF_RANKS and loss.gain_ms > loss.ms:
            return f"; the mean of all ranks, the straggler's too, is {self.losses.share(loss.ms):.1%}"
        if loss.gain_ms - loss.ms > SECONDARY_THRESHOLD * self.losses.step_ms:
            return f"; {loss.gain_ms - loss.ms:,.1f} ms of it by queued work that would hide other losses"
        if not self._overlap_ms(loss):
            return ""
        others = [other for other in self.losses.losses if other is not loss and self._overlap_ms(other)]
        is_one = self.analysis.job.world_size == 1
        names = listed([f"{in_sentence(self._title(o))}{'' if is_one else _on_ranks(o)}" for o in others])
        return f"; {loss.overlap_ms:,.1f} ms more overlap with {names or 'another cause'}"

    def _confidence(self, loss: Loss) -> float:
        if loss.basis == TELEMETRY:
            most = BOUND_CONFIDENCE if loss.recorded is None else 1.0
            return min(self._seen(loss.recorded), INFERRED_CONFIDENCE if loss.is_inferred else most)
        if loss.recorded is not None:
            return min(self._seen(loss.recorded), INFERRED_CONFIDENCE if not loss.least_ms else BOUND_CONFIDENCE)
        if loss.basis == REPLAY:
            return CALIBRATED_CONFIDENCE
        own = min(self.analysis.verdict.confidence, SEEN_CONFIDENCE)
        if loss.is_inferred:
            return min(own, INFERRED_CONFIDENCE)
        certain = own if self.analysis.verdict.cause is loss.cause else min(own, BOUND_CONFIDENCE)
        rivals = [other.ms for other in self.losses.losses if other is not loss and other.cause in HOST_CAUSES]
        if loss.least_ms is not None and max(rivals, default=0.0) > loss.least_ms:
            certain = min(certain, RIVALLED_CONFIDENCE)
        distorted = self.losses.distortion is None or abs(self.losses.distortion) > NOTABLE_DISTORTION
        return round(min(certain, BOUND_CONFIDENCE) if distorted else certain, 3)

    def _seen(self, recorded: HostLoss | None) -> float:
        """Confidence in a loss that all steps show: how often it comes first when steps are drawn anew."""
        certain = SEEN_CONFIDENCE
        if self.analysis.job.device_kind == "gpu" and recorded in self.training.steps.unmeasured:
            certain = UNMEASURED_EXPOSURE_CONFIDENCE
        if any(notice.code == "oversubscribed" for notice in self.analysis.warnings):
            certain = min(certain, OVERSUBSCRIBED_CONFIDENCE)
        return round(certain * (1.0 if recorded is None else self._stability(recorded)), 3)

    def _stability(self, recorded: HostLoss) -> float:
        """Share of resamples of the steps in which this loss reaches a tenth and is the largest of those recorded."""
        training, losses = self.training, self.losses
        rows = np.flatnonzero(training.weight > 0)
        if len(rows) < 2:
            return 1.0
        by_loss = np.stack([training.losses.own_ms[loss][rows] * training.weight[rows] for loss in HostLoss])
        period = training.steps.period_ms[rows] * training.weight[rows]
        begins = np.arange(0, len(rows), -(-len(rows) // _MAX_DRAWN))
        by_loss, period = np.add.reduceat(by_loss, begins, axis=1), np.add.reduceat(period, begins)
        drawn = resampled_places(_NUM_RESAMPLES, len(begins))
        sums = by_loss[:, drawn].sum(axis=2)
        others = max((loss.ms for loss in losses.losses if loss.basis != TELEMETRY), default=0.0) / losses.step_ms
        first = sums.max(axis=0)
        is_first = sums[list(HostLoss).index(recorded)] >= first
        return float(np.mean(is_first & (first >= max(BOTTLENECK_THRESHOLD, others) * period[drawn].sum(axis=1))))


def _on_ranks(loss: Loss) -> str:
    return f" on {ranks_words(loss.ranks)}" if loss.ranks else ""


_NUM_RESAMPLES = 500
_MAX_DRAWN = 1_000
"""More steps are drawn as runs of adjacent ones, which bounds memory."""


def _remedies_by_counters(loss: Loss) -> dict[Reason, str]:
    """Remedies that name what counters found: the CPU limit that stops a loss's threads, the process on the GPU."""
    evidence = {} if loss.counted is None else {item.metric: item.value for item in loss.counted.evidence}
    remedies = {}
    if "cgroup_throttled_ratio" in evidence:
        limit = evidence.get("cgroup_cpu_limit")
        now = "" if limit is None else f" of {limit:g} {form(limit, 'CPU')}"
        where = "cpu.max; Kubernetes: resources.limits.cpu; Slurm: --cpus-per-task"
        remedies[Reason.CPU_LIMITED] = f"raise the cgroup's limit{now} ({where})"
    named = [who for metric in evidence if (who := metric.partition("other_process_memory: ")[2])]
    if named:
        remedies[Reason.GPU_SHARED] = f"end {listed(named)} on this GPU, or give the job a GPU of its own"
    return remedies
