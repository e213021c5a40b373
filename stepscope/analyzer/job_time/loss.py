"""Loss of a job: time of a step that goes to one cause, and how that is known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from stepscope.analyzer.blame.reasons import REASON_THRESHOLD
from stepscope.analyzer.job_time.steps import HostLoss
from stepscope.core.vocabulary import Cause, Evidence, Reason

TELEMETRY, TRACE, BOUND, REPLAY = "telemetry", "trace", "bound", "replay"

_CATEGORIES = {HostLoss.COLLECTION: "garbage_collection", HostLoss.COMPILATION: "compilation"}
"""Parts of a cause that the records measure apart from the rest of it."""


class CountedReasons(NamedTuple):
    """Reasons of a loss by the counters of GPUs and hosts, and their evidence."""

    reasons: list[Reason]
    evidence: list[Evidence]


@dataclass(frozen=True, slots=True)
class Loss:
    """One loss of a job, ms of a step.

    Attributes:
        basis: telemetry | trace | bound | replay: seen in all steps, seen in the captured ones, between `least_ms` and
            `most_ms`, or what the calibrated replay saves without it, with a relative `error`.
        is_inferred: nothing recorded names the cause.
        recorded: what the step records call it; None where they do not.
        alone_ms: what the step gains if it alone is taken away: less than `ms` where other ranks lose time to something
            else meanwhile, more where the GPU then works on during other losses; None: `ms`.
        own_ms: how long it holds up the rank that it holds up longest; None: `ms`.
        kept_ms: what stays of it after its fix: a copy from pinned memory, launches that allocate nothing.
        counted: reasons by counters; None where none explain it.
    """

    cause: Cause
    ms: float
    reasons: list[Reason] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    basis: str = TRACE
    least_ms: float | None = None
    most_ms: float | None = None
    is_inferred: bool = False
    recorded: HostLoss | None = None
    error: float | None = None
    alone_ms: float | None = None
    own_ms: float | None = None
    kept_ms: float = 0.0
    counted: CountedReasons | None = None

    @property
    def gain_ms(self) -> float:
        """What the step gains by its fix."""
        return max((self.ms if self.alone_ms is None else self.alone_ms) - self.kept_ms, 0.0)

    @property
    def overlap_ms(self) -> float:
        """How long it holds up its rank while others are held up by something else."""
        return max((self.ms if self.own_ms is None else self.own_ms) - self.gain_ms - self.kept_ms, 0.0)

    def limited(self, ms: float) -> Loss:
        """The same loss cut to so many ms, and with it what it gains."""
        part = ms / self.ms if self.ms > 0 else 1.0
        alone_ms, own_ms = (None if of is None else part * of for of in (self.alone_ms, self.own_ms))
        return replace(self, ms=ms, alone_ms=alone_ms, own_ms=own_ms)

    @property
    def most_gain_ms(self) -> float:
        """What the step gains without it once those that it overlaps with are gone."""
        return self.gain_ms + self.overlap_ms

    @property
    def category(self) -> str:
        """Its key in the breakdown of training time."""
        own = None if self.recorded is None else _CATEGORIES.get(self.recorded)
        return own or self.cause.value


NARROW = 0.05
"""Bounds this close together, as a share of the loss, are one number."""


def merged_losses(losses: Sequence[Loss]) -> list[Loss]:
    """One loss a category, in all but its size as the largest of it.

    Those of one rank that the replay tells apart from those of all, and unexplained ones, whose causes may differ, stay
    apart.
    """
    by_category: dict[tuple[str, tuple[int, ...]], list[Loss]] = defaultdict(list)
    unexplained = []
    for loss in sorted(losses, key=lambda loss: -loss.ms):
        if loss.category == Cause.UNEXPLAINED.value:
            unexplained.append(loss)
        else:
            by_category[loss.category, tuple(loss.ranks) if loss.basis == REPLAY else ()].append(loss)
    return [*map(_joined, by_category.values()), *unexplained]


def _joined(losses: Sequence[Loss]) -> Loss:
    """Losses of one category as one, the largest first; of small ones the reasons are left out."""
    largest = losses[0]
    if len(losses) == 1:
        return largest
    whole_ms = sum(loss.ms for loss in losses)
    notable = [largest, *(loss for loss in losses[1:] if loss.ms >= REASON_THRESHOLD * whole_ms)]
    joined = replace(
        largest,
        ms=whole_ms,
        alone_ms=sum(loss.gain_ms + loss.kept_ms for loss in losses),
        kept_ms=sum(loss.kept_ms for loss in losses),
        own_ms=sum(loss.ms if loss.own_ms is None else loss.own_ms for loss in losses),
        reasons=list(dict.fromkeys(reason for loss in notable for reason in loss.reasons)),
    )
    least_ms = sum(loss.ms if loss.least_ms is None else loss.least_ms for loss in losses)
    most_ms = sum(loss.ms if loss.most_ms is None else loss.most_ms for loss in losses)
    if most_ms - least_ms <= NARROW * joined.ms:
        return replace(joined, least_ms=None, most_ms=None)
    return replace(joined, basis=BOUND, least_ms=least_ms, most_ms=most_ms)
