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


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One pass of one micro-batch through one stage, as a mark in the trace tells it.

    Attributes:
        task: which pass; its stage is NONE where the mark does not tell.
        step: the step number it was launched in, or NONE without steps.
        start_ns, end_ns: on the rank's clock; on a device of the kernels launched under the mark.
        busy_ns: booked time of those kernels; None without a device.
        launched_ns: from when to when the host was under the mark, always on the rank's own clock, as its graph is;
            None without a device.
    """

    task: Task
    step: int
    start_ns: int
    end_ns: int
    busy_ns: float | None = None
    launched_ns: tuple[int, int] | None = None


Order = list[list[Task]]
"""By device, its tasks in the order in which it runs them."""
