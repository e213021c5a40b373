"""Losses of a job: telemetry of all steps and captures of a few, joined to shares of training time.

The records of the steps say what the host was doing; a capture divides what remains. A capture slows the host, so its
idle time is cut to what unprofiled steps can have: their rest without the kernels back to back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from stepscope.analyzer.blame.reasons import BOTTLENECK_THRESHOLD
from stepscope.analyzer.job_time.calibrated_steps import CalibratedSteps
from stepscope.analyzer.job_time.captured_steps import CapturedSteps
from stepscope.analyzer.job_time.loss import BOUND, REPLAY, TELEMETRY, TRACE, Loss, merged_losses
from stepscope.analyzer.job_time.queued_work import hidden_ms
from stepscope.analyzer.job_time.recorded_losses import recorded_losses, weighted_mean
from stepscope.analyzer.job_time.steps import Flags, Floats, HostLoss
from stepscope.analyzer.job_time.training_time import TrainingTime
from stepscope.analyzer.ledger.segments import CAUSE_CODE, CAUSE_ORDER
from stepscope.analyzer.what_if.planned_calls import Removal
from stepscope.core.documents.analysis import OVERLAPPING
from stepscope.core.text.trace_quality import NOTABLE_DISTORTION
from stepscope.core.vocabulary import Cause, Reason

HOST_CAUSES: tuple[Cause, ...] = (Cause.HOST_BOUND, Cause.SYNCHRONIZATION, Cause.DEVICE_GAP)
"""Causes of idle time that recording makes longer."""

MEANS_OF_RANKS = (Cause.STRAGGLER, Cause.IMBALANCE)
"""Causes whose captured time is a mean of all ranks, also of the one that the others wait for."""

_LEFT_OUT = (Cause.DATA_LOADING, Cause.CHECKPOINT, Cause.PROFILER, Cause.BEFORE_WINDOW)
"""Known from the records of the steps, or no part of an unprofiled step."""

_DEVICE_WORK: tuple[Cause, ...] = (Cause.COMPUTE_BOUND, Cause.MEMORY_BOUND, Cause.LATENCY_BOUND)

_OWN_WORK: tuple[Cause, ...] = (*_DEVICE_WORK, Cause.UNEXPLAINED)
"""The job's own work; in a capture `unexplained` is mostly kernels with an unknown limit."""

MAX_BEFORE_WINDOW = 0.1
"""Most of a captured step that may be waiting for what began before the trace, for the step to show the others."""

LIKE_STEPS = 0.15
"""Relative difference up to which a capture stands for a step."""

UNRECORDED_HOST = (0.57, 0.79)
"""Host time of a step without a profiler / with one that records operators and shapes, as measured on an H200."""

RETRIES_FIGURE = "num_alloc_retries"
MOSTLY_RETRIED, HARDLY_RETRIED = 0.5, 0.1
"""Least share of slow steps, and largest of others, with retries of the allocator, for these to be the cause."""

MOSTLY_LATE = 0.5
"""Least part of a rank's lateness in captured steps that their largest loss is, for it to be the reason."""

MOSTLY_WAITED = 0.5
"""Least mean wait of the ranks for uneven work, as a part of what even work gains, for that to be gained."""
EVENED_ERROR = 0.06
"""Relative error of the step with even work: 0.4% and 4% on two recorded pairs of runs."""

MIN_PAUSED_SHARE = 0.10
"""Least share of pauses in captured steps for contention to be suspected."""

MIN_COPIED_SHARE = 0.10
"""Least share of the allocated memory that a slow step copies to pageable host memory for a checkpoint to be
suspected: the weights are a quarter to a seventh of what training holds."""
MIN_COPIED_BYTES = 1 << 28
"""The same where the allocated memory is unknown."""


MOSTLY_ALLOCATED = 0.5
"""Share of the host's delay that goes without allocations from which on the allocator is what to mend."""

_ROUNDING_MS = 1e-6


class JobLosses(NamedTuple):
    """What a step is made of, ms.

    A loss takes the same of a step whether its update lasts or not. So without it, steps without a lasting update are
    shorter as well; and if they had one, the losses would be shared by more steps.

    Attributes:
        step_ms: mean step.
        wasted_share: of the steps, those without a lasting update: what training gains if they have one.
        losses: the one first that holds a step up longest.
        work_ms: by cause, the job's own work.
        irregular_ms: what ordinary steps take longer than their median, part of the unexplained loss.
        distortion: captured rest / unprofiled rest - 1; None where no capture stands for the steps.
    """

    step_ms: float
    wasted_share: float
    losses: list[Loss]
    work_ms: dict[Cause, float]
    irregular_ms: float
    distortion: float | None

    def share(self, milliseconds: float) -> float:
        """Share of training time of so many ms of each step."""
        return milliseconds / self.step_ms if self.step_ms > 0 else 0.0

    @property
    def shared_share(self) -> float:
        """Share of training time that is gained without either of two causes: losses in wasted steps, and what queued
        work would hide of others."""
        longer = [loss for loss in self.losses if loss.cause not in MEANS_OF_RANKS]
        hidden_ms = sum(max(loss.gain_ms + loss.kept_ms - loss.ms, 0.0) for loss in longer)
        wasted = self.wasted_share * self.share(sum(loss.gain_ms for loss in self.losses))
        return self.share(hidden_ms) + (wasted if self.wasted_share < 1 else 0.0)

    def useful_ms(self, milliseconds: float) -> float:
        """Training time for each step with a lasting update, if each step takes so long; all steps where none has."""
        return milliseconds / (1.0 - self.wasted_share) if self.wasted_share < 1 else milliseconds

    def breakdown(self) -> dict[str, float]:
        """Share of training time by category; all of it is wasted where no update lasts."""
        if self.wasted_share >= 1:
            return {Cause.WASTED_STEPS.value: 1.0}
        shares: dict[str, float] = defaultdict(float)
        for cause, milliseconds in self.work_ms.items():
            shares[cause.value] += (1.0 - self.wasted_share) * self.share(milliseconds)
            shares[Cause.WASTED_STEPS.value] += self.wasted_share * self.share(milliseconds)
        for loss in self.losses:
            own_ms = min(loss.gain_ms + loss.kept_ms, loss.ms)
            shares[loss.category] += self.share(own_ms)
            if loss.ms - own_ms > _ROUNDING_MS:
                shares[OVERLAPPING] += self.share(loss.ms - own_ms)
        missing = 1.0 - sum(shares.values())
        if missing > 1e-9:
            shares[Cause.UNEXPLAINED.value] += missing
        return dict(sorted(((name, share) for name, share in shares.items() if share > 0), key=lambda item: -item[1]))


def job_losses(
    training: TrainingTime, captures: Sequence[CapturedSteps], light: CalibratedSteps | None = None
) -> JobLosses:
    """Join the records of all steps with the captures of some, and with the replay of a light one."""
    steps, weight = training.steps, training.weight
    wasted = steps.is_skipped | training.is_lost
    step_ms = weighted_mean(steps.period_ms, weight)
    floor_ms = _floor_ms(captures)
    if floor_ms is None and light is not None:
        floor_ms = light.floor_ms
    late_cause = _late_cause(training, captures)
    is_uneven = late_cause is Cause.IMBALANCE and _evened_ms(captures) is not None  # by kernels, which captures hold
    recorded = [
        replace(loss, cause=late_cause or loss.cause) if loss.recorded is HostLoss.LATENESS else loss
        for loss in recorded_losses(training, weight, floor_ms)
        if not (is_uneven and loss.recorded is HostLoss.LATENESS)
    ]
    if late_cause in HOST_CAUSES and light is not None and light.is_sound:  # which tells what the step gains
        recorded = [loss for loss in recorded if loss.recorded is not HostLoss.LATENESS]
        late_cause = None
    excess = np.where(training.slow.is_slow, training.losses.rest_ms - training.slow.ordinary_ms, 0.0)
    slow_ms = weighted_mean(np.maximum(excess, 0.0), weight)
    held_up_ms = sum(loss.ms if loss.most_ms is None or floor_ms is None else loss.most_ms for loss in recorded)
    slow_ms = min(slow_ms, max(step_ms - (floor_ms or 0.0) - held_up_ms, 0.0))
    slow = _slow_losses(training, captures, slow_ms)
    if not captures and training.trend is not None:
        growth_ms = _longer_ms(training, weight, training.trend.first_ms)
        slow.append(Loss(Cause.UNEXPLAINED, growth_ms, [Reason.STEPS_GET_LONGER], basis=TELEMETRY))
    left_ms = step_ms - sum(loss.ms for loss in (*recorded, *slow))
    irregular_ms = 0.0
    if captures:  # of a few steps do not show why others take longer
        longer_ms = _longer_ms(training, weight, training.slow.ordinary_ms)
        irregular_ms = min(longer_ms, max(left_ms - (floor_ms or 0.0), 0.0))
    rest_ms = max(left_ms - irregular_ms, 0.0)
    late_ms = 0.0  # of kernels of its own, which the floor holds: then only the captures tell it
    late = next((loss for loss in recorded if loss.recorded is HostLoss.LATENESS), None)
    if late is not None and late.ms > _ROUNDING_MS:
        kept = late.ms / weighted_mean(training.losses.ms[HostLoss.LATENESS], weight)
        late_ms = min(kept, 1.0) * _captured_mean(training, HostLoss.LATENESS)
    rest = _rest(training, captures, rest_ms, light, late_cause, late_ms, floor_ms=floor_ms or 0.0)
    if irregular_ms and rest_ms:  # what a slow host makes irregular is gone with its cause
        rest, irregular_ms = _with_irregular(rest, irregular_ms, rest_ms)
    slow.append(Loss(Cause.UNEXPLAINED, irregular_ms, basis=BOUND))
    losses = merged_losses(
        [loss for loss in (*recorded, *slow, *rest.losses) if max(loss.ms, loss.overlap_ms) > _ROUNDING_MS]
    )
    return JobLosses(
        step_ms=step_ms,
        wasted_share=weighted_mean(wasted.astype(np.float64), weight),
        losses=sorted(losses, key=lambda loss: -loss.most_gain_ms),
        work_ms=rest.work_ms,
        irregular_ms=irregular_ms,
        distortion=rest.distortion,
    )


def _floor_ms(captures: Sequence[CapturedSteps]) -> float | None:
    known = [capture.floor_ms for capture in captures if capture.floor_ms is not None]
    return min(known) if known else None


def _evened_ms(captures: Sequence[CapturedSteps]) -> float | None:
    """What a step is shorter with the devices' work cut evenly over the ranks, mean of the captures that tell."""
    known = [capture.evened_ms for capture in captures if capture.evened_ms is not None]
    return float(np.mean(known)) if known else None


def _longer_ms(training: TrainingTime, weight: Floats, than_ms: float) -> float:
    """What ordinary steps take longer on average, as a part of the mean of all."""
    ordinary = weight * ~training.slow.is_slow
    longer_ms = max(weighted_mean(training.losses.rest_ms, ordinary) - than_ms, 0.0)
    return longer_ms * float(ordinary.sum() / weight.sum())


def _slow_losses(training: TrainingTime, captures: Sequence[CapturedSteps], slow_ms: float) -> list[Loss]:
    """What slow steps without a record lost: by a capture of such a step, else unexplained."""
    if slow_ms <= 0:
        return []
    slow = training.slow
    captured = _captured(training, captures, slow.is_slow)
    if captured is None:
        if _has_retried(training):
            return [Loss(Cause.HOST_BOUND, slow_ms, [Reason.ALLOCATOR], slow.late_ranks, TELEMETRY, is_inferred=True)]
        return [Loss(Cause.UNEXPLAINED, slow_ms, [], slow.late_ranks, TELEMETRY)]
    if _copies_weights(training, captures):
        return [Loss(Cause.CHECKPOINT, slow_ms, basis=TRACE, is_inferred=True)]
    plain = _captured(training, captures, ~slow.is_slow)
    more = np.maximum(captured - (0.0 if plain is None else plain), 0.0)
    more[[CAUSE_CODE[cause] for cause in (*_LEFT_OUT, *_DEVICE_WORK)]] = 0.0
    if more.sum() <= 0:
        return [Loss(Cause.UNEXPLAINED, slow_ms, [], slow.late_ranks, TELEMETRY)]
    more *= slow_ms / more.sum()
    return [Loss(CAUSE_ORDER[code], float(more[code])) for code in np.flatnonzero(more).tolist()]


def _has_retried(training: TrainingTime) -> bool:
    """Whether the allocator had to free its caches in most slow steps and hardly any other."""
    count = training.steps.figures.get(RETRIES_FIGURE)
    if count is None:
        return False
    so_far = np.maximum.accumulate(np.nan_to_num(count))
    has_retried = np.diff(so_far, prepend=so_far[0]) > 0
    slow, others = (has_retried[training.settled & kind] for kind in (training.slow.is_slow, ~training.slow.is_slow))
    return bool(len(slow) and slow.mean() >= MOSTLY_RETRIED and (not len(others) or others.mean() <= HARDLY_RETRIED))


def _captured(training: TrainingTime, captures: Sequence[CapturedSteps], kind: Flags) -> Floats | None:
    """Mean ms by cause of the captured steps of a kind; None without one.

    A step that waited for what began before the trace does not show why; it counts only where no other is captured.
    """
    rows = [
        row
        for capture in captures
        for place, row in zip(_places(training, capture), capture.cause_ms, strict=True)
        if place is not None and kind[place]
    ]
    known = [row for row in rows if row[CAUSE_CODE[Cause.BEFORE_WINDOW]] <= MAX_BEFORE_WINDOW * row.sum()]
    return np.mean(known or rows, axis=0) if rows else None


def _places(training: TrainingTime, capture: CapturedSteps) -> list[int | None]:
    """Row of each captured step: of the attempt whose records say that a profiler recorded most of them, the latest
    where none does; None without a record."""
    steps = training.steps
    rows = np.flatnonzero(np.isin(steps.index, capture.index))
    if not len(rows):
        return [None] * len(capture.index)
    attempts = steps.attempt[rows]
    attempt = max(np.unique(attempts), key=lambda one: (int(steps.is_captured[rows[attempts == one]].sum()), one))
    place = {int(steps.index[row]): int(row) for row in rows[attempts == attempt]}
    return [place.get(index) for index in capture.index]


def _copies_weights(training: TrainingTime, captures: Sequence[CapturedSteps]) -> bool:
    """Whether captured slow steps copy as much to pageable memory as a save of the weights does."""
    steps, is_slow = training.steps, training.slow.is_slow
    allocated = training.steps.figures.get("memory_allocated_bytes")
    least = MIN_COPIED_BYTES if allocated is None else MIN_COPIED_SHARE * float(np.nanmedian(allocated))
    for capture in captures:
        places = [place for place in _places(training, capture) if place is not None]
        if not places:
            continue
        recorded = (steps.attempt == steps.attempt[places[0]]) & (steps.index >= min(capture.index))
        recorded &= steps.index <= max(capture.index) + 1  # the last step is in the trace, but not whole
        num_slow = int((recorded & is_slow).sum())
        if num_slow and capture.pageable_bytes / num_slow >= least:
            return True
    return False


class _Rest(NamedTuple):
    losses: list[Loss]
    work_ms: dict[Cause, float]
    distortion: float | None


def _rest(
    training: TrainingTime,
    captures: Sequence[CapturedSteps],
    rest_ms: float,
    light: CalibratedSteps | None,
    late_cause: Cause | None,
    late_ms: float,
    *,
    floor_ms: float,
) -> _Rest:
    """What is left of an ordinary step, divided as its captures are."""
    captures = [capture for capture in captures if len(capture.index)]
    if not captures:
        return _Rest([], {Cause.UNEXPLAINED: rest_ms}, None)
    cause_ms = _plain(training, captures)
    cause_ms[[CAUSE_CODE[cause] for cause in _LEFT_OUT]] = 0.0
    collected = _captured_mean(training, HostLoss.COLLECTION)
    cause_ms[CAUSE_CODE[Cause.HOST_BOUND]] = max(cause_ms[CAUSE_CODE[Cause.HOST_BOUND]] - collected, 0.0)
    if late_cause is not None:  # what makes a rank late is a loss of its own
        code = CAUSE_CODE[late_cause]
        cause_ms[code] = max(cause_ms[code] - late_ms, 0.0)
    captured_ms = float(cause_ms.sum())
    delayed_ms = 0.0 if captures[0].on_device else _captured_mean(training, HostLoss.RUN_DELAY)
    distortion = max(captured_ms - delayed_ms, 0.0) / rest_ms - 1.0 if rest_ms > 0 else None
    of = {CAUSE_ORDER[code]: float(cause_ms[code]) for code in np.flatnonzero(cause_ms).tolist()}
    if not captures[0].on_device:
        unknown_ms = max(rest_ms - captured_ms - LIKE_STEPS * rest_ms, 0.0)  # of which shorter steps show nothing
        scale = (rest_ms - unknown_ms) / captured_ms if captured_ms > 0 else 0.0
        unknown = [Loss(Cause.UNEXPLAINED, unknown_ms, basis=BOUND)] if unknown_ms > 0 else []
        of = {cause: own * scale for cause, own in of.items()}
        return _divided(_without_recording(of, rest_ms, distortion or 0.0), unknown, distortion)
    paused = [capture.paused_ms / capture.step_ms.mean() for capture in captures]
    extra: list[Loss] = []
    if (share := float(np.mean(paused))) >= MIN_PAUSED_SHARE:
        contended_ms = min(share * rest_ms, max(rest_ms - floor_ms, 0.0))
        extra = [Loss(Cause.CONTENTION, contended_ms, [Reason.GPU_SHARED], basis=BOUND, is_inferred=True)]
        work = sum(of.get(cause, 0.0) for cause in _DEVICE_WORK)
        of |= {cause: of[cause] * floor_ms / work for cause in _DEVICE_WORK if cause in of and work > floor_ms}
        of.pop(Cause.DEVICE_GAP, None)
        rest_ms -= contended_ms
    host = [cause for cause in HOST_CAUSES if cause in of]
    is_replayed = light is not None and light.is_sound and not extra
    if light is not None and is_replayed and Cause.COMMUNICATION in of:  # a profiler that makes ranks late adds waits
        of[Cause.COMMUNICATION] = min(of[Cause.COMMUNICATION], light.saved(Removal.COLLECTIVES) * rest_ms)
    uneven = _uneven(of.get(Cause.IMBALANCE, 0.0), captures)
    if uneven is not None:  # more than that waits for a host that recording slows
        of[Cause.IMBALANCE] = uneven.ms
    fixed_ms = sum(own for cause, own in of.items() if cause not in host)
    idle_ms = max(rest_ms - fixed_ms, 0.0)
    if fixed_ms > rest_ms > 0:
        of |= {cause: own * rest_ms / fixed_ms for cause, own in of.items() if cause not in host}
    if light is not None and is_replayed:
        divided = _replayed_idle(training, of, idle_ms, rest_ms, light)
        copied_ms = of.pop(Cause.COPY, 0.0)
        saved_ms = light.saved(Removal.COPIES) * rest_ms
        kept_ms = max(copied_ms - saved_ms, 0.0)
        error = light.error_without(Removal.COPIES)
        divided.append(Loss(Cause.COPY, copied_ms, basis=REPLAY, error=error, kept_ms=kept_ms))
        communicated_ms = of.pop(Cause.COMMUNICATION, 0.0)
        divided.append(Loss(Cause.COMMUNICATION, communicated_ms, basis=REPLAY, error=light.error))
    else:
        divided = [
            _with_hidden(training, loss, rest_ms, light) if loss.cause is Cause.HOST_BOUND else loss
            for loss in _idle(of, host, idle_ms, rest_ms, captures)
        ]
    for cause in host:
        of.pop(cause)
    if uneven is not None:
        divided.append(uneven.limited(of.pop(Cause.IMBALANCE)))
    if (delayed_ms := of.pop(Cause.STRAGGLER, 0.0)) > 0:
        divided.append(_straggler(delayed_ms, rest_ms, captures))
    return _divided(of, [*extra, *divided], distortion)


def _with_irregular(rest: _Rest, irregular_ms: float, rest_ms: float) -> tuple[_Rest, float]:
    """Losses of the replay with their part of what ordinary steps take longer than their median; and what is left."""
    more = irregular_ms / rest_ms
    losses = [
        replace(loss, ms=loss.ms * (1 + more), kept_ms=loss.kept_ms * (1 + more)) if loss.basis == REPLAY else loss
        for loss in rest.losses
    ]
    moved_ms = sum(loss.ms for loss in losses) - sum(loss.ms for loss in rest.losses)
    return rest._replace(losses=losses), irregular_ms - moved_ms


def _late_cause(training: TrainingTime, captures: Sequence[CapturedSteps]) -> Cause | None:
    """What makes a rank late for which no record tells why: a loss of captured steps that is as long; None where none
    is."""
    is_captured = training.steps.is_captured
    late_ms = weighted_mean(training.losses.own_ms[HostLoss.LATENESS], is_captured.astype(np.float64))
    cause_ms = _captured(training, captures, is_captured)
    if cause_ms is None or late_ms <= 0:
        return None
    cause_ms[[CAUSE_CODE[cause] for cause in (*_LEFT_OUT, *_OWN_WORK)]] = 0.0
    code = int(cause_ms.argmax())
    return CAUSE_ORDER[code] if cause_ms[code] >= MOSTLY_LATE * late_ms else None


def _captured_mean(training: TrainingTime, loss: HostLoss) -> float:
    """Mean of a loss over the captured steps, which their trace shows under other causes."""
    return weighted_mean(training.losses.ms[loss], training.steps.is_captured.astype(np.float64))


def _plain(training: TrainingTime, captures: Sequence[CapturedSteps]) -> Floats:
    """Mean ms by cause of the captured steps without slow steps' and phases' time, of all where each has such."""
    steps, losses = training.steps, training.losses
    in_phase = losses.ms[HostLoss.CHECKPOINT] + losses.ms[HostLoss.EVALUATION]
    is_plain = ~training.slow.is_slow & (in_phase < LIKE_STEPS * training.slow.ordinary_ms)
    if captures[0].on_device:  # what a host does before its first launch of a step is in the device's step before
        is_plain[:-1] &= in_phase[1:] < LIKE_STEPS * training.slow.ordinary_ms
    plain = _captured(training, captures, is_plain & steps.is_captured)
    return plain if plain is not None else np.concatenate([capture.cause_ms for capture in captures]).mean(axis=0)


def _idle(
    of: dict[Cause, float], host: list[Cause], idle_ms: float, rest_ms: float, captures: Sequence[CapturedSteps]
) -> list[Loss]:
    """The idle time of an unprofiled step by cause: a capture tells what it may be, not how much each takes."""
    captured_idle_ms = sum(of[cause] for cause in host)
    if captured_idle_ms <= 0:
        return [Loss(Cause.UNEXPLAINED, idle_ms, basis=BOUND)]
    unknown_ms = max(idle_ms - captured_idle_ms - LIKE_STEPS * rest_ms, 0.0)
    idle_ms -= unknown_ms
    losses = [Loss(Cause.UNEXPLAINED, unknown_ms, basis=BOUND)]
    without_blocking = [c.without_blocking_ms for c in captures if c.without_blocking_ms is not None]
    if Cause.SYNCHRONIZATION in host and without_blocking:
        free_ms = float(np.mean(without_blocking))
        most, least = (min(max(rest_ms - factor * free_ms, 0.0), idle_ms) for factor in UNRECORDED_HOST)
        blocked_ms = min(max(rest_ms - float(np.mean(UNRECORDED_HOST)) * free_ms, 0.0), idle_ms)
        blocked = Loss(Cause.SYNCHRONIZATION, blocked_ms, basis=BOUND, least_ms=least, most_ms=most)
        losses.append(blocked)
        host = [cause for cause in host if cause is not Cause.SYNCHRONIZATION]
        left_ms, least_left, most_left = idle_ms - blocked_ms, idle_ms - most, idle_ms - least
    else:
        left_ms = least_left = most_left = idle_ms
    total = sum(of[cause] for cause in host)
    for cause in host:
        part = of[cause] / total if total > 0 else 0.0
        # a host that is never late also queues ahead what now starts late
        most_ms = most_left if cause is Cause.HOST_BOUND else part * most_left
        losses.append(Loss(cause, part * left_ms, basis=BOUND, least_ms=part * least_left, most_ms=most_ms))
    return losses


def _replayed_idle(
    training: TrainingTime, of: dict[Cause, float], idle_ms: float, rest_ms: float, light: CalibratedSteps
) -> list[Loss]:
    """The idle time of an unprofiled step by cause, as the calibrated replay saves it without each."""
    ranks = training.steps.ranks
    late_ranks = [] if light.late_host is None else [ranks[light.late_host]]
    uneven_ms = light.saved(Removal.UNEVEN_HOST) * rest_ms if late_ranks else 0.0
    free_ms = light.saved(Removal.BLOCKING_CALLS) * rest_ms  # more than idle time, where copies and kernels go as well
    blocked_ms = min(free_ms, idle_ms)
    late_ms = min(max(light.saved(Removal.HOST_TIME) * rest_ms - blocked_ms, 0.0), idle_ms - blocked_ms)
    left_ms = idle_ms - blocked_ms - late_ms
    gap_ms = min(left_ms, of.get(Cause.DEVICE_GAP, 0.0))  # recording makes gaps longer, never shorter
    uneven_ms = min(uneven_ms, late_ms)
    uneven = Loss(Cause.HOST_BOUND, uneven_ms, ranks=late_ranks, basis=REPLAY, error=light.error)
    all_ranks = list(ranks) if len(ranks) > 1 else []
    late = Loss(Cause.HOST_BOUND, late_ms - uneven_ms, ranks=all_ranks, basis=REPLAY, error=light.error)
    allocated_ms = min(light.saved(Removal.ALLOCATIONS) * rest_ms, late_ms)
    if allocated_ms >= MOSTLY_ALLOCATED * late_ms > 0:
        error = light.error_without(Removal.ALLOCATIONS)
        late = replace(late, reasons=[Reason.ALLOCATOR], ms=late_ms, kept_ms=late_ms - allocated_ms, error=error)
        uneven = replace(uneven, ms=0.0)
    late = _with_hidden(training, late, rest_ms, light)
    free, bound = light.without[Removal.BLOCKING_CALLS], light.without[Removal.NOTHING]
    queued_ms = free.queued_ms - bound.queued_ms
    hidden = 0.0
    if blocked_ms > 0:  # of late batches the middle of its bounds: nobody knows how soon the loader has the next ones
        growth_ms = free.step_ms - free.host_ms
        stops = [_HOST_STOPS, [HostLoss.COLLECTION, HostLoss.COMPILATION]]
        hidden = float(np.mean([hidden_ms(training, of, queued_ms, growth_ms) for of in stops]))
    return [
        Loss(
            Cause.SYNCHRONIZATION,
            blocked_ms,
            basis=REPLAY,
            error=light.error_without(Removal.BLOCKING_CALLS),
            alone_ms=free_ms + hidden,
        ),
        late,
        uneven,
        Loss(Cause.DEVICE_GAP, gap_ms, basis=BOUND),
        Loss(Cause.UNEXPLAINED, left_ms - gap_ms, basis=BOUND),
    ]


_HOST_STOPS = [HostLoss.DATA_WAIT, HostLoss.COLLECTION, HostLoss.COMPILATION]


def _with_hidden(training: TrainingTime, loss: Loss, rest_ms: float, light: CalibratedSteps | None) -> Loss:
    """The loss of a late host, which without it may be ahead by as much as can be queued when something else holds it
    up, also by what a save does before it copies: how far ahead nobody knows."""
    if light is None or loss.ms < BOTTLENECK_THRESHOLD * rest_ms:
        return loss
    queued_ms = light.without[Removal.HOST_TIME].queued_ms
    hidden = hidden_ms(training, [*_HOST_STOPS, HostLoss.CHECKPOINT], queued_ms, light.floor_ms)
    if hidden <= 0:
        return loss
    least_ms, most_ms = (loss.ms if bound is None else bound for bound in (loss.least_ms, loss.most_ms))
    return replace(loss, alone_ms=loss.ms + hidden / 2, least_ms=least_ms, most_ms=most_ms + hidden)


def _without_recording(of: dict[Cause, float], rest_ms: float, distortion: float) -> dict[Cause, float]:
    """Causes of a CPU job's step, less what recording may add to the time between operators, where that decides whether
    it is a bottleneck: half of what recording adds at most, as nobody knows which of the two it makes longer."""
    own_ms = of.get(Cause.HOST_BOUND, 0.0)
    added_ms = rest_ms * max(distortion, 0.0) / (1.0 + max(distortion, 0.0))
    middle_ms = (own_ms + max(own_ms - added_ms, 0.0)) / 2
    if distortion <= NOTABLE_DISTORTION or middle_ms >= BOTTLENECK_THRESHOLD * rest_ms:
        return of
    operators_ms = of.get(Cause.COMPUTE_BOUND, 0.0) + own_ms - middle_ms
    return of | {Cause.HOST_BOUND: middle_ms, Cause.COMPUTE_BOUND: operators_ms}


def _uneven(waited_ms: float, captures: Sequence[CapturedSteps]) -> Loss | None:
    """The loss to uneven work: the mean wait of all ranks, and what a step gains with the devices' work cut evenly.

    Ranks that wait for less than half of that have other things to wait for. None where captures do not tell the gain.
    """
    evened_ms = _evened_ms(captures)
    if evened_ms is None or waited_ms <= 0:
        return None
    alone_ms = evened_ms if waited_ms >= MOSTLY_WAITED * evened_ms else None
    return Loss(Cause.IMBALANCE, min(waited_ms, evened_ms), basis=REPLAY, error=EVENED_ERROR, alone_ms=alone_ms)


def _straggler(mean_ms: float, rest_ms: float, captures: Sequence[CapturedSteps]) -> Loss:
    """The loss to a straggler: the mean wait of all ranks, the straggler's too, and by the replay what a step gains."""
    without = [capture.without_straggler for capture in captures if capture.without_straggler is not None]
    gain_ms = (1.0 - float(np.mean(without))) * rest_ms if without else 0.0
    return Loss(Cause.STRAGGLER, mean_ms, alone_ms=gain_ms if gain_ms > mean_ms else None)


def _divided(of: dict[Cause, float], losses: list[Loss], distortion: float | None) -> _Rest:
    """Causes split into the job's own work and losses."""
    work = {cause: own for cause, own in of.items() if cause in _OWN_WORK}
    others = [Loss(cause, own) for cause, own in of.items() if cause not in work]
    return _Rest([*others, *losses], work, distortion)
