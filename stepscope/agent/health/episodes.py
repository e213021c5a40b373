"""Episodes of a health event: when one begins and ends, with hysteresis in time, so that flapping is one episode.

An episode begins when samples have been bad for long enough without a good one between, and ends when they have been
good for long enough without a bad one. Of the time between samples that are too far apart nothing is known. Without
samples an open episode stays open, with the time of the last one. An operator may acknowledge an episode, or end it:
then another begins only with new evidence.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from stepscope.agent.config.settings import HealthThresholds
from stepscope.agent.health.samples import CheckEvidence, CheckSample, SampleState
from stepscope.core.hardware.health import HealthEvent, OperatorNote
from stepscope.core.metrics.readings import Labels


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """Hysteresis of a health event in time, seconds.

    Attributes:
        enter: samples must be bad for so long for an episode to begin.
        leave: samples must be good for so long for it to end.
    """

    enter: float
    leave: float


def health_hysteresis_of(thresholds: HealthThresholds) -> dict[str, Hysteresis]:
    """Hysteresis of each health event but those of XIDs, which begin at once and end after `xid_leave_seconds`."""
    errors = Hysteresis(0.0, thresholds.leave_seconds)
    answers = Hysteresis(thresholds.hung_seconds, 60.0)
    return {
        # answers
        "gpu_lost": Hysteresis(0.0, 60.0),
        "gpu_hung": answers,
        "gpu_stalls": errors,
        "gpu_unreadable": answers,
        "recovery_action": Hysteresis(0.0, 60.0),
        "dcgm_health": Hysteresis(0.0, 60.0),
        "profiling_silent": Hysteresis(0.0, 60.0),
        "busy_without_process": Hysteresis(0.0, 60.0),
        # memory
        "ecc_uncorrected": Hysteresis(5.0, 0.0),  # an XID that reports it as contained comes first
        "ecc_corrected_rate": errors,
        "row_remap_failed": Hysteresis(0.0, 0.0),
        "row_remap_pending": Hysteresis(0.0, 0.0),
        "remapped_rows": Hysteresis(0.0, 0.0),
        "sram_threshold": Hysteresis(0.0, 0.0),
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
        "nvswitch_errors": errors,
        "nvswitch_link_down": Hysteresis(thresholds.hung_seconds, 60.0),
        "nvswitch_reset": Hysteresis(0.0, 60.0),
        # heat and power
        "thermal_violation": errors,
        "temperature_margin": Hysteresis(10.0, 120.0),
        "hardware_slowdown": errors,
        # XIDs
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


_OF_THE_PAST = frozenset({"ecc_uncorrected", "remapped_rows", "retired_pages", "gpu_stalls", "infiniband_port_flaps"})


def is_of_the_past(code: str) -> bool:
    """Whether a health event is of errors that came, whose count stays when all is well again.

    All others are conditions, which stand or not: the next sample shows it.
    """
    return code in _OF_THE_PAST or code.startswith(("xid_", "sxid_"))


MAX_ENDED = 256
"""Number of ended events that are kept."""


@dataclass(slots=True)
class _Episode:
    evidence: CheckEvidence
    first_ns: int
    last_ns: int
    count: int
    since_start: bool
    id: str = ""
    acknowledged: OperatorNote | None = None


@dataclass(slots=True)
class _Track:
    """Samples and episode of one code of one thing: a GPU, port, switch or the machine.

    Attributes:
        accepted: evidence of the past that an operator set healthy, until a sample is good or shows more.
    """

    labels: Labels
    episode: _Episode | None = None
    candidate: _Episode | None = None
    good_since_ns: int | None = None
    last_ns: int | None = None
    accepted: CheckEvidence | None = None


@dataclass(frozen=True, slots=True)
class LastingEpisode:
    """What outlives the agent of one code of one thing; exactly one of `event` and `accepted` is there.

    Attributes:
        key: of the thing.
        event: the open episode.
        accepted: see `_Track`.
    """

    key: str
    code: str
    labels: Labels
    event: HealthEvent | None = None
    accepted: CheckEvidence | None = None


class HealthEpisodes:
    """All episodes of health events of a machine.

    Args:
        gap_seconds: samples further apart are not consecutive.

    Attributes:
        ended: the newest that are over, the oldest first.
        totals: number that began, by labels of the thing and code.
    """

    def __init__(self, hysteresis: Callable[[str], Hysteresis], *, gap_seconds: float) -> None:
        self._hysteresis = hysteresis
        self._gap_ns = int(gap_seconds * 1e9)
        self._tracks: dict[tuple[str, str], _Track] = {}
        self.ended: deque[HealthEvent] = deque(maxlen=MAX_ENDED)
        self.totals: Counter[tuple[Labels, str]] = Counter()

    def observe(self, key: str, labels: Labels, sample: CheckSample) -> HealthEvent | None:
        """Add a sample of the thing with this lasting key; the event if an episode begins or ends with it."""
        track = self._tracks.setdefault((key, sample.code), _Track(labels))
        track.labels = labels
        if sample.state is SampleState.OVER:
            track.accepted = None
            return self._end(track, sample.code, sample.time_ns)
        last_ns, is_first = track.last_ns, track.last_ns is None
        if sample.time_ns == last_ns:
            return None
        if last_ns is not None and not 0 < sample.time_ns - last_ns <= self._gap_ns:
            track.candidate, track.good_since_ns = None, None
        track.last_ns = sample.time_ns
        if sample.state is SampleState.BAD:
            assert sample.evidence is not None
            if track.accepted is not None and not _shows_more(sample, sample.evidence, track.accepted):
                return None
            track.accepted = None
            since_start = is_first and not sample.is_new
            return self._bad(key, track, sample, sample.evidence, since_start=since_start)
        track.candidate = None
        if sample.state is SampleState.BETWEEN:
            track.good_since_ns = None
            return None
        track.accepted = None
        if track.good_since_ns is None:
            track.good_since_ns = sample.time_ns
        if sample.time_ns - track.good_since_ns >= self._hysteresis(sample.code).leave * 1e9:
            return self._end(track, sample.code, track.good_since_ns)
        return None

    def forget(self, key: str, now_ns: int) -> list[HealthEvent]:
        """Remove a thing that no longer exists; the events that end with it."""
        codes = [code for whose, code in self._tracks if whose == key]
        ended = [self._end(self._tracks.pop((key, code)), code, now_ns) for code in codes]
        return [event for event in ended if event is not None]

    def open_events(self) -> list[tuple[str, HealthEvent]]:
        """Events that are not over, with the key of their thing; the worst first, of equals the newest."""
        events = [
            (key, _event(track, code, track.episode))
            for (key, code), track in self._tracks.items()
            if track.episode is not None
        ]
        return sorted(events, key=lambda one: (-one[1].severity.rank, -one[1].first_ns, one[1].code, one[0]))

    def last_ns(self, key: str, code: str) -> int | None:
        """Time of the last sample of a check; None: never."""
        track = self._tracks.get((key, code))
        return None if track is None else track.last_ns

    def keys(self) -> set[str]:
        """Keys of the things that have open events."""
        return {key for (key, _), track in self._tracks.items() if track.episode is not None}

    def acknowledge(self, event_id: str, note: OperatorNote) -> HealthEvent | None:
        """Note who knows of an open event; the event, or None where no open one has this id."""
        for (_, code), track in self._tracks.items():
            episode = track.episode
            if episode is not None and episode.id == event_id:
                episode.acknowledged = note
                return _event(track, code, episode)
        return None

    def stands(self, key: str, code: str, now_ns: int) -> bool:
        """Whether the last sample of a condition, not older than two samples may be apart, was not good."""
        track = self._tracks.get((key, code))
        if track is None or track.last_ns is None or is_of_the_past(code):
            return False
        return track.good_since_ns is None and now_ns - track.last_ns <= self._gap_ns

    def set_healthy(self, key: str, note: OperatorNote) -> list[HealthEvent]:
        """End all events of a thing by an operator's word.

        Another begins once a sample shows more errors than these did, or a condition.
        """
        ended = []
        for (whose, code), track in self._tracks.items():
            if whose == key and track.episode is not None:
                track.accepted = track.episode.evidence if is_of_the_past(code) else None
                track.good_since_ns = None
                event = self._end(track, code, note.time_ns, note)
                assert event is not None
                ended.append(event)
        return ended

    def end_codes(self, is_over: Callable[[str], bool], now_ns: int) -> list[HealthEvent]:
        """End the open events of these codes, as those that no reboot leaves; the events."""
        ended = []
        for (_, code), track in self._tracks.items():
            if is_over(code):
                track.accepted = None
                ended.append(self._end(track, code, now_ns))
        return [event for event in ended if event is not None]

    def lasting(self) -> list[LastingEpisode]:
        """What a restarted agent needs to go on: open events, and what an operator set healthy."""
        return [
            LastingEpisode(
                key, code, track.labels, None if episode is None else _event(track, code, episode), track.accepted
            )
            for (key, code), track in self._tracks.items()
            if (episode := track.episode) is not None or track.accepted is not None
        ]

    def restore(
        self, lasting: Iterable[LastingEpisode], ended: Iterable[HealthEvent], totals: Iterable[tuple[Labels, str, int]]
    ) -> None:
        """Go on where an earlier agent ended; before the first sample."""
        for one in lasting:
            track = self._tracks[one.key, one.code] = _Track(one.labels, accepted=one.accepted)
            if (event := one.event) is not None:
                times = event.first_ns, event.last_ns, event.count
                track.episode = _Episode(_evidence_of(event), *times, event.since_start, event.id, event.acknowledged)
        self.ended.extend(ended)
        for labels, code, count in totals:
            self.totals[labels, code] += count

    def _bad(
        self, key: str, track: _Track, sample: CheckSample, evidence: CheckEvidence, *, since_start: bool
    ) -> HealthEvent | None:
        track.good_since_ns = None
        episode = track.episode or track.candidate
        if episode is None:
            first_ns = sample.time_ns if sample.since_ns is None else min(sample.since_ns, sample.time_ns)
            episode = track.candidate = _Episode(evidence, first_ns, sample.time_ns, sample.count, since_start)
        else:
            episode.last_ns = max(episode.last_ns, sample.time_ns)
            episode.count += sample.count
            if evidence.severity.rank > episode.evidence.severity.rank:
                episode.acknowledged = None  # it was of something milder
            if evidence.is_worse_than(episode.evidence):
                episode.evidence = evidence
        usual = self._hysteresis(sample.code).enter
        enter_seconds = usual if sample.enter_seconds is None else min(usual, sample.enter_seconds)
        if track.episode is not None or sample.time_ns - episode.first_ns < enter_seconds * 1e9:
            return None
        track.episode, track.candidate = episode, None
        self.totals[track.labels, sample.code] += 1
        episode.id = _event_id(key, sample.code, self.totals[track.labels, sample.code], episode.first_ns)
        return _event(track, sample.code, episode)

    def _end(
        self, track: _Track, code: str, ended_ns: int, set_healthy: OperatorNote | None = None
    ) -> HealthEvent | None:
        episode = track.episode
        track.episode, track.candidate = None, None
        if episode is None:
            return None
        event = replace(_event(track, code, episode), ended_ns=max(ended_ns, episode.last_ns), set_healthy=set_healthy)
        self.ended.append(event)
        return event


def _shows_more(sample: CheckSample, evidence: CheckEvidence, accepted: CheckEvidence) -> bool:
    """Whether a sample is evidence beyond what an operator set healthy: not the same old value once more."""
    if evidence.severity.rank > accepted.severity.rank:
        return True
    if evidence.value is None or evidence.threshold is None or accepted.value is None or accepted.threshold is None:
        return sample.is_new
    return abs(evidence.value - evidence.threshold) > abs(accepted.value - accepted.threshold)


_ID_BYTES = 5


def _event_id(key: str, code: str, number: int, first_ns: int) -> str:
    """Id of the episode of this number of a code of a thing; with its time, as numbers begin anew with other labels."""
    import hashlib  # it loads OpenSSL, 4 MB that an agent without events does without

    text = f"{key} {code} {number} {first_ns}".encode(errors="replace")
    return f"{code}-{hashlib.blake2b(text, digest_size=_ID_BYTES).hexdigest()}"


def _evidence_of(event: HealthEvent) -> CheckEvidence:
    return CheckEvidence(event.severity, event.action, event.message, event.value, event.threshold, event.unit)


def _event(track: _Track, code: str, episode: _Episode) -> HealthEvent:
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
        None,
        episode.count,
        episode.since_start,
        episode.id,
        episode.acknowledged,
    )
