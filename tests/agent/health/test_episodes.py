"""One event an episode, whatever flaps: by hand, and for any run of samples."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepscope.agent.health.episodes import MAX_ENDED, HealthEpisodes, Hysteresis
from stepscope.agent.health.samples import CheckEvidence, CheckSample, SampleState, bad, good
from stepscope.core.hardware.health import Action, HealthEvent, OperatorNote, Severity
from stepscope.core.metrics.readings import labels_of
from tests.agent.health.machines import SECOND

_LABELS = labels_of(gpu=0, uuid="GPU-0")


def _evidence(value: float = 2.0, severity: Severity = Severity.WARNING) -> CheckEvidence:
    return CheckEvidence(severity, Action.REBOOT, f"it is {value}", value, 1.0, "errors")


class _Run:
    def __init__(self, enter: float, leave: float, gap: float = 60.0, code: str = "code") -> None:
        self.episodes = HealthEpisodes(lambda _: Hysteresis(enter, leave), gap_seconds=gap)
        self.code = code
        self.changes: list[HealthEvent] = []

    def bad(self, at: float, evidence: CheckEvidence | None = None) -> None:
        self._take(bad(self.code, int(at * SECOND), evidence or _evidence()))

    def good(self, at: float) -> None:
        self._take(good(self.code, int(at * SECOND)))

    def between(self, at: float) -> None:
        self._take(CheckSample(self.code, int(at * SECOND), SampleState.BETWEEN))

    def _take(self, sample: CheckSample) -> None:
        event = self.episodes.observe("GPU-0", _LABELS, sample)
        if event is not None:
            self.changes.append(event)


def test_it_begins_when_it_has_been_bad_for_long_enough() -> None:
    run = _Run(enter=30, leave=60)
    run.good(0)
    for at in (10, 20, 30):
        run.bad(at)
    assert not run.changes
    run.bad(40)
    (event,) = run.changes
    assert (event.first_ns, event.last_ns, event.count) == (10 * SECOND, 40 * SECOND, 4)
    assert (event.ended_ns, event.since_start) == (None, False)


def test_it_is_over_when_all_has_been_well_for_long_enough() -> None:
    run = _Run(enter=0, leave=60)
    run.bad(0)
    for at in (10, 30, 60):
        run.good(at)
    assert len(run.changes) == 1
    run.good(70)
    began, ended = run.changes
    assert began.since_start
    assert (ended.last_ns, ended.ended_ns) == (0, 10 * SECOND)
    assert not run.episodes.open_events()
    assert list(run.episodes.ended) == [ended]


def test_what_flaps_is_one_event() -> None:
    run = _Run(enter=0, leave=60)
    for at in range(0, 1000, 20):
        run.bad(at)
        run.good(at + 10)
    assert len(run.changes) == 1
    assert run.episodes.open_events()[0][1].count == 50


def test_a_good_sample_begins_the_wait_anew() -> None:
    run = _Run(enter=30, leave=60)
    for at in range(0, 300, 30):
        run.bad(at)
        run.bad(at + 10)
        run.good(at + 20)
    assert not run.changes


def test_between_the_thresholds_nothing_begins_and_nothing_ends() -> None:
    run = _Run(enter=0, leave=20)
    run.between(0)
    run.bad(10)
    for at in range(20, 200, 10):
        run.between(at)
    assert len(run.changes) == 1
    assert run.episodes.open_events()


def test_samples_far_apart_prove_nothing_of_the_time_between() -> None:
    run = _Run(enter=30, leave=60)
    for at in (0, 100, 200, 300):
        run.bad(at)
    assert not run.changes
    run.bad(330)
    assert len(run.changes) == 1
    for at in (400, 500, 600):
        run.good(at)
    assert run.episodes.open_events()


def test_the_same_sample_again_counts_for_nothing() -> None:
    run = _Run(enter=0, leave=60)
    run.bad(5)
    run.bad(5)
    assert run.episodes.open_events()[0][1].count == 1


def test_the_worst_of_an_episode_stays() -> None:
    run = _Run(enter=0, leave=60)
    run.bad(0, _evidence(50.0))
    run.bad(10, _evidence(200.0, Severity.CRITICAL))
    run.bad(20, _evidence(70.0))
    run.bad(30, _evidence(150.0, Severity.CRITICAL))
    (event,) = (event for _, event in run.episodes.open_events())
    assert (event.severity, event.value, event.message) == (Severity.CRITICAL, 200.0, "it is 200.0")
    assert len(run.changes) == 1


def test_ended_events_are_kept_up_to_a_number() -> None:
    run = _Run(enter=0, leave=0)
    for at in range(MAX_ENDED + 50):
        run.bad(2 * at)
        run.good(2 * at + 1)
    assert len(run.episodes.ended) == MAX_ENDED
    assert run.episodes.ended[-1].first_ns == 2 * (MAX_ENDED + 49) * SECOND
    assert run.episodes.totals == {(_LABELS, "code"): MAX_ENDED + 50}


_SIGNS = st.lists(st.tuples(st.sampled_from(["bad", "good", "between", "over"]), st.integers(-40, 100)), max_size=80)


@given(_SIGNS, st.integers(0, 60), st.integers(0, 60))
def test_whatever_comes_one_is_open_at_most_and_none_ends_before_it_began(
    signs: list[tuple[str, int]], enter: int, leave: int
) -> None:
    run, now = _Run(enter, leave), 1000
    for kind, seconds in signs:
        now += seconds  # clocks are set back, too
        if kind == "over":
            run._take(CheckSample("code", now * SECOND, SampleState.OVER))
        else:
            getattr(run, kind)(now)
        opened = run.episodes.open_events()
        assert len(opened) <= 1
        for event in (*run.changes, *(event for _, event in opened)):
            assert event.first_ns <= event.last_ns
            assert event.ended_ns is None or event.last_ns <= event.ended_ns
            assert event.count >= 1
    kinds = [event.ended_ns is None for event in run.changes]
    assert kinds == [index % 2 == 0 for index in range(len(kinds))]  # begin, end, begin, end


@given(st.lists(st.integers(1, 100), max_size=50), st.integers(0, 60), st.integers(0, 60))
def test_good_samples_make_no_event(gaps: list[int], enter: int, leave: int) -> None:
    run, now = _Run(enter, leave), 0
    for gap in gaps:
        now += gap
        run.good(now)
    assert not run.changes


_NOTE = OperatorNote("ann", "known", 10 * SECOND)


def test_what_was_acknowledged_is_not_once_it_is_worse() -> None:
    run = _Run(enter=0, leave=60)
    run.bad(0)
    (event,) = run.changes
    assert run.episodes.acknowledge(event.id, _NOTE) is not None
    run.bad(5, _evidence(50.0))
    assert run.episodes.open_events()[0][1].acknowledged == _NOTE
    run.bad(10, _evidence(50.0, Severity.CRITICAL))
    assert run.episodes.open_events()[0][1].acknowledged is None
    assert run.episodes.acknowledge("code-0", _NOTE) is None


def test_errors_that_were_set_healthy_begin_again_with_new_evidence_only() -> None:
    run = _Run(enter=0, leave=60, code="ecc_uncorrected")
    run.bad(0, _evidence(5.0))
    (ended,) = run.episodes.set_healthy("GPU-0", _NOTE)
    assert (ended.ended_ns, ended.set_healthy) == (10 * SECOND, _NOTE)
    for at, value in ((15, 5.0), (20, 2.0), (25, 5.0)):
        run.bad(at, _evidence(value))
    assert len(run.changes) == 1
    run.bad(30, _evidence(6.0))
    assert len(run.changes) == 2
    run.episodes.set_healthy("GPU-0", _NOTE)
    run.bad(35, _evidence(6.0, Severity.CRITICAL))
    assert len(run.changes) == 3
    run.episodes.set_healthy("GPU-0", _NOTE)
    run.good(40)
    run.bad(45, _evidence(2.0))
    assert len(run.changes) == 4
    assert len({event.id for event in run.changes}) == 4
    assert run.episodes.set_healthy("GPU-1", _NOTE) == []


def test_a_condition_that_was_set_healthy_begins_again_when_a_sample_shows_it() -> None:
    run = _Run(enter=0, leave=60, code="row_remap_failed")
    run.bad(0)
    run.episodes.set_healthy("GPU-0", _NOTE)
    run.bad(5)
    assert len(run.changes) == 2
    assert len(run.episodes.open_events()) == 1


def test_a_condition_stands_while_its_samples_are_bad_and_new() -> None:
    run = _Run(enter=0, leave=60, code="row_remap_failed")
    assert not run.episodes.stands("GPU-0", "row_remap_failed", 0)
    run.bad(0)
    assert run.episodes.stands("GPU-0", "row_remap_failed", 60 * SECOND)
    assert not run.episodes.stands("GPU-0", "row_remap_failed", 61 * SECOND)  # nobody has looked for so long
    run.between(65)
    assert run.episodes.stands("GPU-0", "row_remap_failed", 65 * SECOND)
    run.good(70)
    assert not run.episodes.stands("GPU-0", "row_remap_failed", 70 * SECOND)
    errors = _Run(enter=0, leave=60, code="xid_119")
    errors.bad(0)
    assert not errors.episodes.stands("GPU-0", "xid_119", 0)
