"""Episodes of a health event: when one begins and ends, with hysteresis in time, so that flapping is one episode.

An episode begins when samples have been bad for long enough without a good one between, and ends when they have been
good for long enough without a bad one. Samples further apart than what is stale are not taken for what was between
them. No sample proves nothing: an open episode stays open, with the time when it was last seen.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from stepscope.agent.config.settings import Thresholds
from stepscope.agent.health.samples import CheckSample, SampleState, SignEvidence
from stepscope.core.hardware.health import HealthEvent
from stepscope.core.metrics.readings import Labels


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """Hysteresis in time, seconds.

    Attributes:
        enter: how long it must be bad for an episode to begin.
        leave: how long it must be good for it to end.
    """

    enter: float
    leave: float


def hysteresis_of(thresholds: Thresholds) -> dict[str, Hysteresis]:
    """For each code that is not an XID's; these begin at once and end after `xid_leave_seconds`."""
    errors = Hysteresis(0.0, thresholds.leave_seconds)
    answers = Hysteresis(thresholds.hung_seconds, 60.0)
    return {
        # does it answer?
        "gpu_lost": Hysteresis(0.0, 60.0),
        "gpu_hung": answers,
        "gpu_stalls": errors,
        "gpu_unreadable": answers,
        "recovery_action": Hysteresis(0.0, 60.0),
        "dcgm_health": Hysteresis(0.0, 60.0),
        "profiling_silent": Hysteresis(0.0, 60.0),
        "busy_without_process": Hysteresis(0.0, 60.0),
        # memory
        "ecc_uncorrected": Hysteresis(5.0, 0.0),  # an XID that says that it was contained comes first
        "ecc_corrected_rate": errors,
        "row_remap_failed": Hysteresis(0.0, 0.0),
        "row_remap_pending": Hysteresis(0.0, 0.0),
        "remapped_rows": Hysteresis(0.0, 0.0),
        "retired_pages": Hysteresis(0.0, 0.0),
        "retired_pages_pending": Hysteresis(0.0, 0.0),
        # PCIe
        "pcie_replays": errors,
        "pcie_downgrade": Hysteresis(thresholds.load_seconds, 60.0),
        # NVLink
        "nvlink_crc_errors": errors,
        "nvlink_replays": errors,
        "nvlink_recoveries": errors,
        "nvlink_errors": errors,
        "nvlink_bit_errors": errors,
        "nvlink_down": Hysteresis(thresholds.hung_seconds, 60.0),
        "fabric_state": Hysteresis(thresholds.fabric_seconds, 60.0),
        "fabric_unhealthy": Hysteresis(thresholds.hung_seconds, 60.0),
        # heat and power
        "thermal_violation": errors,
        "temperature_margin": Hysteresis(10.0, 120.0),
        "hardware_slowdown": errors,
        # what an XID tells
        "xid_earlier": Hysteresis(0.0, 0.0),
        "xid_repeats": Hysteresis(0.0, thresholds.repeats_seconds),
        # the machine
        "driver_mismatch": Hysteresis(0.0, 0.0),
        "driver_hung": answers,
        "driver_failed": answers,
        "driver_gone": answers,
        "gpu_count": Hysteresis(60.0, 60.0),
        "infiniband_port_down": Hysteresis(10.0, thresholds.port_leave_seconds),
        "infiniband_port_flaps": Hysteresis(0.0, thresholds.port_leave_seconds),
    }


MOST_ENDED = 256
"""Ended events that are kept."""


@dataclass(slots=True)
class _Episode:
    evidence: SignEvidence
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

    def __init__(self, patience: Callable[[str], Hysteresis], *, gap_seconds: float) -> None:
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

    def observe(self, key: str, labels: Labels, sign: CheckSample) -> HealthEvent | None:
        """Take a sample; the event where an episode begins or ends with it.

        Args:
            key: of the thing, the same for ever.
            labels: of the thing, as they are now.
            sign: what a check says of the sample.
        """
        track = self._tracks.setdefault((key, sign.code), _Track(labels))
        track.labels = labels
        if sign.standing is SampleState.OVER:
            return self._end(track, sign.code, sign.time_ns)
        last_ns, is_first = track.last_ns, track.last_ns is None
        if sign.time_ns == last_ns:
            return None
        if last_ns is not None and not 0 < sign.time_ns - last_ns <= self._gap_ns:
            track.candidate, track.good_since_ns = None, None
        track.last_ns = sign.time_ns
        if sign.standing is SampleState.BAD:
            assert sign.evidence is not None
            return self._bad(track, sign, sign.evidence, since_start=is_first and not sign.is_new)
        track.candidate = None
        if sign.standing is SampleState.BETWEEN:
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

    def _bad(
        self, track: _Track, sign: CheckSample, evidence: SignEvidence, *, since_start: bool
    ) -> HealthEvent | None:
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
