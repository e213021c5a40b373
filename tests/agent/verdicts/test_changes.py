"""Changes of verdicts: only those that last, not too many, and in bounded memory."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from stepscope.agent.verdicts.changes import VerdictChanges
from stepscope.core.documents.node import RunVerdict
from stepscope.core.protocol.verdicts import LiveVerdict

_HEALTHY = "compute_bound"


def _verdict(cause: str | None, time_ns: int, run: str = "r", uid: int = 7) -> RunVerdict:
    """None is an unknown bottleneck."""
    is_known = None if cause is None else cause != _HEALTHY
    return RunVerdict(LiveVerdict(run, time_ns, cause or "insufficient_evidence", 0.9, bottleneck=is_known), uid, ())


def _announced(causes: Sequence[str | None], settle_seconds: float = 60.0, per_hour: int = 12) -> list[tuple[int, str]]:
    """A verdict a minute, of which the agent sees each twice: minute and new state of the changes."""
    changes, found = VerdictChanges(settle_seconds, per_hour), []
    for minute, cause in enumerate(causes):
        for look in (0.0, 30.0):
            for change in changes.take([_verdict(cause, minute)], 60.0 * minute + look):
                found.append((minute, change.now.verdict.cause if change.now.verdict.bottleneck else ""))
    return found


def test_a_change_that_lasts_is_announced_once() -> None:
    assert _announced([_HEALTHY] * 5) == []
    assert _announced([_HEALTHY, "copy", "copy", "copy", "copy"]) == [(2, "copy")]
    assert _announced(["copy", "copy", _HEALTHY, "memory_bound", _HEALTHY, _HEALTHY]) == [(1, "copy"), (5, "")]
    assert _announced(["copy", "copy", "straggler", "straggler"]) == [(1, "copy"), (3, "straggler")]


def test_what_does_not_last_or_is_unknown_is_no_change() -> None:
    assert _announced([_HEALTHY, "copy", _HEALTHY, "copy", _HEALTHY]) == []
    assert _announced(["copy", "straggler", "copy", "straggler"]) == []
    assert _announced(["copy", None, None, "copy"]) == [(3, "copy")]
    assert _announced(["copy", "copy", None, None, "copy", "copy"]) == [(1, "copy")]
    assert _announced(["copy", "copy", "copy"], settle_seconds=120.0) == [(2, "copy")]


def test_one_verdict_seen_for_long_does_not_last() -> None:
    changes = VerdictChanges(0.0, 12)
    assert [changes.take([_verdict("copy", 1)], float(at)) for at in range(100)] == [[]] * 100
    assert len(changes.take([_verdict("copy", 2)], 100.0)) == 1


def test_further_changes_of_a_user_wait() -> None:
    changes = VerdictChanges(0.0, 3)
    runs = [_verdict("copy", 1, f"r{number}") for number in range(5)] + [_verdict("copy", 1, "theirs", uid=8)]
    later = [_verdict("copy", 2, one.verdict.run, one.uid or 0) for one in runs]
    changes.take(runs, 0.0)
    assert [change.now.verdict.run for change in changes.take(later, 1.0)] == ["r0", "r1", "r2", "theirs"]
    assert changes.take(later, 3000.0) == []
    assert [change.now.verdict.run for change in changes.take(later, 3602.0)] == ["r3", "r4"]


def test_a_run_is_forgotten_an_hour_after_its_last_verdict() -> None:
    changes = VerdictChanges(0.0, 100)
    for begin in (0.0, 100.0, 4000.0):
        changes.take([_verdict("copy", 1)], begin)
        assert len(changes.take([_verdict("copy", 2)], begin + 1)) == (begin != 100.0)


@given(
    st.lists(st.tuples(st.sampled_from([None, _HEALTHY, "copy", "straggler"]), st.floats(0.0, 500.0)), max_size=60),
    st.floats(0.0, 300.0),
    st.integers(1, 5),
)
def test_no_sequence_announces_too_often(
    verdicts: list[tuple[str | None, float]], settle_seconds: float, per_hour: int
) -> None:
    changes, now, times = VerdictChanges(settle_seconds, per_hour), 0.0, []
    state = ""
    for number, (cause, pause) in enumerate(verdicts):
        now += pause
        for change in changes.take([_verdict(cause, number)], now):
            assert change.before == state
            state = change.now.verdict.cause if change.now.verdict.bottleneck else ""
            assert state != change.before
            times.append(now)
    assert all(later - earlier >= settle_seconds for earlier, later in itertools.pairwise(times))
    assert all(times[place + per_hour] - times[place] >= 3600.0 for place in range(len(times) - per_hour))


def test_a_user_with_a_thousand_runs_takes_bounded_memory() -> None:
    changes = VerdictChanges(0.0, 12)
    tracemalloc.start()
    for number in range(1000):
        changes.take([_verdict("copy", 1, f"run-{number}")], number / 1000)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 1 << 20
    changes.take([_verdict("copy", 2, "other", uid=8)], 2.0)
    assert len(changes.take([_verdict("copy", 3, "other", uid=8)], 3.0)) == 1
