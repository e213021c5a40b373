"""What does a pipeline stage do with a micro-batch?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Pass(StrEnum):
    """A pass through one stage, by torch's letters."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    """the half of a backward that the previous stage waits for"""
    BACKWARD_WEIGHT = "W"
    """the other half, for which nobody waits: zero-bubble schedules fill their gaps with it"""

    @property
    def sends_gradient(self) -> bool:
        """Whether the previous stage needs it."""
        return self in (Pass.BACKWARD, Pass.BACKWARD_INPUT)


@dataclass(frozen=True, slots=True)
class Task:
    """One pass of one micro-batch; `stage` is the virtual stage (its place in the chain of model parts)."""

    kind: Pass
    stage: int
    micro_batch: int


Order = list[list[Task]]
"""By device, its tasks in the order in which it runs them."""
