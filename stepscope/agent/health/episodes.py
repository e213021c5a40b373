"""When does an episode begin and end? Time is an argument; what flaps is one episode, not many.

It begins when samples have been bad for long enough without a good one between, and ends when they have been good for
long enough without a bad one. Samples further apart than what is stale are not taken for what was between them. No
sample proves nothing: an open episode stays open, with the time when it was last seen.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from stepscope.agent.health.patience import Patience
from stepscope.agent.health.signs import Evidence, Sign, Standing
from stepscope.core.health import HealthEvent
from stepscope.core.readings import Labels

MOST_ENDED = 256
"""Ended events that are kept."""


@dataclass(slots=True)
class _Episode:
    evidence: Evidence
    first_ns: int
    last_ns: int
    count: int
    since_start: bool


@dataclass(slots=True)
class _Track:
    """One code of one thing: its run of samples, and its episode while there is one."""

    labels: Labels
    episode: _Episode | None = None
    candidate: _Episode | None = None
    good_since_ns: int | None = None
    last_ns: int | None = None


class Episodes:
    """All episodes of a machine.

    Attributes:
        ended: the newest that are over, oldest first.
        totals: how many began, by labels of the thing and code.
    """

    def __init__(self, patience: Callable[[str], Patience], *, gap_seconds: float) -> None:
        """
        Args:
            patience: of a code.
            gap_seconds: samples further apart make no run.
        """
        self._patience = patience
        self._gap_ns = int(gap_seconds * 1e9)
        self._tracks: dict[tuple[str, str], _Track] = {}
        self.ended: deque[HealthEvent] = deque(maxlen=MOST_ENDED)
        self.totals: Counter[tuple[Labels, str]] = Counter()

    def observe(self, key: str, labels: Labels, sign: Sign) -> HealthEvent | None:
        """Take a sample; the event where an episode begins or ends with it.

        Args:
            key: of the thing, the same for ever.
            labels: of the thing, as they are now.
            sign: what a check says of the sample.
        """
        track = self._tracks.setdefault((key, sign.code), _Track(labels))
        track.labels = labels
        if sign.standing is Standing.OVER:
            return self._end(track, sign.code, sign.time_ns)
        last_ns, is_first = track.last_ns, track.last_ns is None
        if sign.time_ns == last_ns:
            return None
        if last_ns is not None and not 0 < sign.time_ns - last_ns <= self._gap_ns:
            track.candidate, track.good_since_ns = None, None
        track.last_ns = sign.time_ns
        if sign.standing is Standing.BAD:
            assert sign.evidence is not None
            return self._bad(track, sign, sign.evidence, since_start=is_first and not sign.is_new)
        track.candidate = None
        if sign.standing is Standing.BETWEEN:
            track.good_since_ns = None
            return None
        if track.good_since_ns is None:
            track.good_since_ns = sign.time_ns
        if sign.time_ns - track.good_since_ns >= self._patience(sign.code).leave * 1e9:
            return self._end(track, sign.code, track.good_since_ns)
        return None

    def forget(self, key: str, now_ns: int) -> list[HealthEvent]:
        """There is no such thing any more; the events that end therefore."""
        codes = [code for whose, code in self._tracks if whose == key]
        ended = [self._end(self._tracks.pop((key, code)), code, now_ns) for code in codes]
        return [event for event in ended if event is not None]

    def open_events(self) -> list[tuple[str, HealthEvent]]:
        """Those not over yet with the key of their thing, the worst first, of equals the newest."""
        events = [
            (key, _event(track, code, track.episode))
            for (key, code), track in self._tracks.items()
            if track.episode is not None
        ]
        return sorted(events, key=lambda one: (-one[1].severity.rank, -one[1].first_ns, one[1].code, one[0]))

    def last_ns(self, key: str, code: str) -> int | None:
        """When a check of this had a sample last; None: never."""
        track = self._tracks.get((key, code))
        return None if track is None else track.last_ns

    def _bad(self, track: _Track, sign: Sign, evidence: Evidence, *, since_start: bool) -> HealthEvent | None:
        track.good_since_ns = None
        episode = track.episode or track.candidate
        if episode is None:
            episode = track.candidate = _Episode(evidence, sign.time_ns, sign.time_ns, sign.count, since_start)
        else:
            episode.last_ns = max(episode.last_ns, sign.time_ns)
            episode.count += sign.count
            if evidence.is_worse_than(episode.evidence):
                episode.evidence = evidence
        if track.episode is not None or sign.time_ns - episode.first_ns < self._patience(sign.code).enter * 1e9:
            return None
        track.episode, track.candidate = episode, None
        self.totals[track.labels, sign.code] += 1
        return _event(track, sign.code, episode)

    def _end(self, track: _Track, code: str, ended_ns: int) -> HealthEvent | None:
        """It was over at that time."""
        episode = track.episode
        track.episode, track.candidate = None, None
        if episode is None:
            return None
        event = _event(track, code, episode, max(ended_ns, episode.last_ns))
        self.ended.append(event)
        return event


def _event(track: _Track, code: str, episode: _Episode, ended_ns: int | None = None) -> HealthEvent:
    evidence = episode.evidence
    return HealthEvent(
        code,
        track.labels,
        evidence.severity,
        evidence.action,
        evidence.message,
        evidence.value,
        evidence.threshold,
        evidence.unit,
        episode.first_ns,
        episode.last_ns,
        ended_ns,
        episode.count,
        episode.since_start,
    )
