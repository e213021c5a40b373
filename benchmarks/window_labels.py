"""What did a GPU do in a window that no profiler saw? By the captures before and after it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.labelled_windows import right_of
from stepscope.core.analysis import RankLedger, StepLedger
from stepscope.core.causes import Cause
from stepscope.core.headings import COMPUTE_HEADINGS, EXPOSED_COMMUNICATION_HEADINGS, IDLE_HEADINGS, Heading
from stepscope.core.steps import Step

_WORK = (*COMPUTE_HEADINGS, Heading.COMMUNICATION, Heading.COPY)
"""What takes as long without a profiler. All else is time in which the GPU waits for a host: its own or a peer's."""
_HOST_CAUSES = {Heading.DATA_LOADING: Cause.DATA_LOADING, Heading.CHECKPOINT: Cause.CHECKPOINT}
"""Whatever else a GPU was empty for is its host."""
_CLOSE = 0.1


@dataclass(frozen=True, slots=True)
class Captured:
    """A rank's mean step in a capture.

    Attributes:
        shares: of the step, by heading.
    """

    step_ms: float
    shares: dict[Heading, float]


def mean_step(ledger: RankLedger) -> Captured | None:
    """Of the steps that are whole: the last one lacks what comes before the next. None where there is none."""
    steps: Sequence[StepLedger] = ledger.steps[:-1] or ledger.steps
    total = sum(step.ms for step in steps)
    if not total:
        return None
    return Captured(
        total / len(steps), {heading: sum(s.ms * s.ledger[heading] for s in steps) / total for heading in Heading}
    )


def at_pace(captured: Captured, step_ms: float) -> dict[Heading, float]:
    """Shares of a step of this length: the work stays as long, and what the GPU waits for hosts fills the rest.

    So what a profiler adds is taken out, on the rank that it makes late and on those that wait for it. Where nothing is
    waited for, or the work alone takes longer, the shares stay as they are.
    """
    work = sum(captured.shares[heading] for heading in _WORK)
    rest = step_ms - work * captured.step_ms
    if work >= 1.0 or rest < 0.0:
        return dict(captured.shares)
    scale = rest / ((1.0 - work) * captured.step_ms)
    in_ms = {
        heading: share * captured.step_ms * (1.0 if heading in _WORK else scale)
        for heading, share in captured.shares.items()
    }
    return {heading: ms / step_ms for heading, ms in in_ms.items()}


def label_of(shares: Mapping[Heading, float]) -> tuple[dict[str, float], frozenset[Cause]]:
    """What the rank's time went into, and which classes say so."""
    spent = {
        "compute": sum(shares[heading] for heading in COMPUTE_HEADINGS),
        "exposed_comm": sum(shares[heading] for heading in EXPOSED_COMMUNICATION_HEADINGS),
        "copy": shares[Heading.COPY],
        "idle": sum(shares[heading] for heading in IDLE_HEADINGS),
    }
    why = max(IDLE_HEADINGS, key=lambda heading: shares[heading])
    bounds = {Cause.COMPUTE_BOUND: shares[Heading.COMPUTE_BOUND] + shares[Heading.COMPUTE_OTHER]}
    bounds |= {Cause.MEMORY_BOUND: shares[Heading.MEMORY_BOUND], Cause.LATENCY_BOUND: shares[Heading.LATENCY_BOUND]}
    most = max(bounds.values())
    healthy = frozenset(cause for cause, share in bounds.items() if share >= most - _CLOSE)
    return spent, right_of(spent, _HOST_CAUSES.get(why, Cause.HOST_BOUND), healthy)


def label_between(beside: Sequence[Captured], step_ms: float) -> tuple[dict[str, float], frozenset[Cause]]:
    """The same of a window of steps of this length, from the captures beside it, which count alike."""
    each = [at_pace(captured, step_ms) for captured in beside]
    return label_of({heading: fmean(shares[heading] for shares in each) for heading in Heading})


def undisturbed(steps: Sequence[Step]) -> list[tuple[int, list[Step], int]]:
    """A rank's steps between each two captures, and the first steps of the two.

    Without the step before a capture, in which it is prepared, and the one after it, which waits for its end.
    """
    captures: list[tuple[int, int]] = []
    for at in (step.index for step in steps if step.captured):
        first = captures.pop()[0] if captures and captures[-1][1] == at - 1 else at
        captures.append((first, at))
    between = []
    for (first, last), (next_first, _) in itertools.pairwise(captures):
        quiet = [step for step in steps if last + 1 < step.index < next_first - 1]
        if quiet:
            between.append((first, quiet, next_first))
    return between


def pace_within(steps: Sequence[Step], begin_ns: int, end_ns: int) -> float | None:
    """Milliseconds a step, of those that lie in this time; hosts run ahead, so that single ones tell little."""
    inside = [step for step in steps if begin_ns <= step.start_ns and step.end_ns <= end_ns]
    return (inside[-1].end_ns - inside[0].start_ns) / 1e6 / len(inside) if inside else None
