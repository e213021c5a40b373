"""What would fixing the causes that an analysis names buy? A few replays beside the verdict, within a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from stepscope.analyzer.what_if.calibrate import calibrate
from stepscope.analyzer.what_if.fixes import FIX_OF_REASON, FIXES
from stepscope.analyzer.what_if.model import ReplayModel
from stepscope.analyzer.what_if.pipeline_schedule import FIXED_CAUSES, PipelineSchedule, replay_schedules
from stepscope.analyzer.what_if.predict import TRUSTED_ERROR, binds_next
from stepscope.core.analysis import Evidence, Notice, RootCause, Verdict, WhatIf
from stepscope.core.counting import form
from stepscope.core.listing import listed
from stepscope.core.words import cause_phrase

REPLAYED_FROM = 0.05
"""A cause is worth a replay from this share of the time on (the verdict names second causes from here)."""

MOST_CAUSES = 3

MOST_SLOTS = 2_000_000
"""A larger graph is left to `stepscope whatif`: a replay takes about 0.2 us a slot."""

_WEAK_GAIN = 0.5
"""When a fix gains less than this part of the cause's share, something else binds next."""

_ANSWERS = 0.5
"""Of the most that a change of the cause gains: what gains less is no answer to its reason."""


def replay_causes(
    build: Callable[[], ReplayModel | None], causes: Sequence[RootCause], unprofiled_ms: float | None
) -> tuple[list[WhatIf], list[Notice]]:
    """Predictions for the largest causes that can be fixed, and why there are none.

    Args:
        build: makes the model; only called when there is something to replay.
        causes: the root-cause table, largest first.
        unprofiled_ms: the step without the profiler, or None.
    """
    fixable = {cause for cause, _ in FIXES}
    named = [row for row in causes if row.cause in fixable and row.fraction >= REPLAYED_FROM][:MOST_CAUSES]
    model = build() if named else None
    if model is None:
        return [], []
    if model.graph.num_slots > MOST_SLOTS:
        large = f"what-if left out: {model.graph.num_slots:,} events to replay; run: stepscope whatif"
        return [], [Notice("what_if_too_large", large)]
    replayed, measured = model.step_ms(model.base), model.measured_ms()
    if min(replayed, measured) <= 0:
        return [], []  # steps without length: there is nothing to gain
    error = replayed / measured - 1.0
    calibration = calibrate(model, replayed, unprofiled_ms) if unprofiled_ms else None
    skipped = [model.step_numbers[place] for place in model.skipped]
    found = []
    for row in named:
        gains = []
        for change in (change for change in FIXES if change[0] is row.cause):
            scenario = FIXES[change](model.job, model.base)
            if scenario is None:
                continue
            step = model.step_ms(scenario)
            if step <= 0:  # nothing is left of the step: no figure
                continue
            calibrated = FIXES[change](model.job, calibration.scenario) if calibration else None
            is_weak = row is named[0] and 1.0 - step / replayed < _WEAK_GAIN * row.fraction
            gains.append(
                WhatIf(
                    fix=row.cause,
                    change=change[1],
                    step_ms=step,
                    speedup=replayed / step,
                    calibrated_step_ms=None if calibrated is None else model.step_ms(calibrated),
                    binds_next=binds_next(model, row.cause, scenario, step) if is_weak else None,
                    replay_error=error,
                    measured_step_ms=measured,
                    skipped_steps=skipped,
                )
            )
        found += _answer_first(row, gains)
    return found, [_on_other_steps(skipped, measured)] if found and skipped else []


def _answer_first(row: RootCause, gains: list[WhatIf]) -> list[WhatIf]:
    """A cause's changes; first what answers its first reason, which the verdict quotes.

    Transfers of tensor parallelism may be what is not overlapped: then reductions hold little of what free ones gain.
    """
    wanted = FIX_OF_REASON.get(row.reasons[0]) if row.reasons else None
    least = _ANSWERS * max((1.0 - 1.0 / gain.speedup for gain in gains), default=0.0)

    def answers(gain: WhatIf) -> bool:
        return (gain.fix, gain.change) == wanted and 1.0 - 1.0 / gain.speedup >= least

    return sorted(gains, key=lambda gain: not answers(gain))


def _on_other_steps(skipped: Sequence[int], measured_ms: float) -> Notice:
    text = (
        f"what-if leaves out {form(len(skipped), 'step')} {listed(skipped)}, whose waits "
        "began before the traces: the steps it stands on take "
        f"{measured_ms:,.1f} ms, which its figures are to be held against"
    )
    return Notice("what_if_steps", text)


def replay_pipeline_causes(schedules: Sequence[PipelineSchedule], causes: Sequence[RootCause]) -> list[WhatIf]:
    """Predictions for a job's pipeline: by its schedule, for the causes that a schedule can remove.

    Args:
        schedules: one a pipeline.
        causes: the root-cause table, largest first.
    """
    named = [row.cause for row in causes if row.cause in FIXED_CAUSES and row.fraction >= REPLAYED_FROM]
    if not named or not schedules:
        return []
    report = replay_schedules(schedules, named)
    return [
        WhatIf(
            fix=fix.fix,
            change=fix.change,
            step_ms=fix.step_ms,
            speedup=fix.speedup,
            calibrated_step_ms=None,
            binds_next=fix.binds_next,
            replay_error=report.replay_error,
            measured_step_ms=report.measured_step_ms,
        )
        for fix in reversed(report.fixes)  # the nearest setting first: the verdict quotes it
    ]


def beside_verdict(verdict: Verdict, what_if: Sequence[WhatIf]) -> Verdict:
    """The verdict with what fixing its cause alone would buy."""
    own = next((w for w in what_if if w.fix is verdict.cause), None)
    if own is None or abs(own.replay_error) > TRUSTED_ERROR:
        return verdict
    of_others = "" if not own.skipped_steps else f" instead of {own.measured_step_ms:,.1f} ms in the steps replayed"
    figures = f"{own.speedup:.2f}x, replay {own.replay_error:+.1%}"
    gain = f"; {own.change}: {own.step_ms:,.1f} ms a step{of_others} ({figures})"
    if own.calibrated_step_ms is not None:
        gain += f", {own.calibrated_step_ms:,.1f} ms without the profiler"
    if own.binds_next is not None:
        gain += f", and the next limit is {cause_phrase(own.binds_next)}"
    evidence = [*verdict.evidence, Evidence("what_if_step", own.step_ms, "ms")]
    return replace(verdict, summary=verdict.summary + gain, evidence=evidence)
