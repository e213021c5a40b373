"""When may a capture take place that was asked for? Pure: ranks that see the same requests in one order agree."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.training.captures.capture_plan import REQUEST_WARMUP
from stepscope.training.captures.schedule import Schedule

_SEARCHED_STEPS = 10_000
_MAX_KEPT = 64


@dataclass(frozen=True, slots=True)
class Place:
    """Where a capture takes place.

    Attributes:
        joined: it is another one's, whose steps these are.
        of_schedule: that other one is scheduled.
    """

    start: int
    steps: int
    joined: bool = False
    of_schedule: bool = False


class Calendar:
    """The captures of the schedule and those that were given a place."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._places: list[tuple[str, Place]] = []

    def place(self, capture_id: str, start: int, steps: int) -> Place | str:
        """The place of a capture of these steps, kept from now on; or why there is none for it."""
        others = self._others(start, start + steps)
        for other, place in others:
            if place.start <= start and start + steps <= place.start + place.steps:
                return Place(place.start, place.steps, joined=True, of_schedule=other is None)
        for other, place in others:
            what = "the schedule" if other is None else f"request {other}"
            last = place.start + place.steps - 1
            return (
                f"steps {start} to {start + steps - 1} and the step before, which prepares the profiler, do not go with"
                f" the capture of steps {place.start} to {last} by {what}"
            )
        own = Place(start, steps)
        self._places = [*self._places, (capture_id, own)][-_MAX_KEPT:]
        return own

    def free_start(self, earliest: int, steps: int) -> int | None:
        """The first step from `earliest` on at which so many can be captured; None when there is no room soon."""
        start = earliest
        while start < earliest + _SEARCHED_STEPS:
            others = self._others(start, start + steps)
            if not others:
                return start
            start = max(place.start + place.steps for _, place in others) + REQUEST_WARMUP
        return None

    def _others(self, start: int, stop: int) -> list[tuple[str | None, Place]]:
        """Captures that share a step with this one, warm-ups counted; those of the schedule, without id, first."""
        found: list[tuple[str | None, Place]] = []
        schedule = self._schedule
        next_start = schedule.capture_from(max(start - REQUEST_WARMUP, 0))
        while next_start is not None and next_start - schedule.warmup < stop:
            found.append((None, Place(next_start, schedule.active)))
            next_start = schedule.capture_from(next_start + schedule.active)
        for capture_id, place in self._places:
            if place.start - REQUEST_WARMUP < stop and start - REQUEST_WARMUP < place.start + place.steps:
                found.append((capture_id, place))
        return found
