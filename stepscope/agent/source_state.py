"""What did a source say last, when, and does it still answer?"""

from __future__ import annotations

from dataclasses import dataclass, field

from stepscope.core.readings import Collection, MissingReason


@dataclass(frozen=True, slots=True)
class SourceState:
    """One source at one moment.

    Attributes:
        name: of the source: "nvml", "host".
        collection: its last; empty before the first.
        collected_ns: when that ended, ns since the epoch; None before the first.
        age_seconds: how long ago that was, whatever was done to the clock since; None before the first.
        seconds: how long that took; None before the first.
        reason: why it gives nothing now; None while it answers.
        detail: one line on it.
        num_collections: those that ended.
        num_errors: times that it failed, or did not answer in time.
    """

    name: str
    collection: Collection = field(default_factory=Collection)
    collected_ns: int | None = None
    seconds: float | None = None
    reason: MissingReason | None = None
    detail: str = ""
    num_collections: int = 0
    num_errors: int = 0
    age_seconds: float | None = None

    def is_older_than(self, seconds: float) -> bool:
        """Whether its last collection is so old; one that never was is not."""
        return self.age_seconds is not None and self.age_seconds >= seconds
