"""Episodes: gaps, health events and verdicts begin and end once, also over a restart of the recorder."""

from __future__ import annotations

from stepscope.store.history.questions import HistoryEvent, HistoryEventKind, Labels
from stepscope.workflow.history.episodes import HEALTH_METRICS, VERDICT_AGE, VERDICT_METRIC, Episodes, GapReason
from stepscope.workflow.history.pages import PageSeries

_N1, _N2 = (("instance", "n1:9455"),), (("instance", "n2:9455"),)
_GAP, _HEALTH, _VERDICT = HistoryEventKind.GAP, HistoryEventKind.HEALTH, HistoryEventKind.VERDICT


def _sick(target: Labels = _N1, code: str = "xid_79", severity: str = "critical") -> PageSeries:
    labels = {**dict(target), "action": "reboot", "code": code, "gpu": "3", "severity": severity, "uuid": "GPU-3"}
    return PageSeries(HEALTH_METRICS[0], tuple(sorted(labels.items())), 1.0)


def _verdict(target: Labels, cause: str, share: float = 0.4, run: str = "train") -> PageSeries:
    return PageSeries(VERDICT_METRIC, tuple(sorted({**dict(target), "cause": cause, "run": run}.items())), share)


def _age(target: Labels, run: str = "train") -> PageSeries:
    return PageSeries(VERDICT_AGE, tuple(sorted({**dict(target), "run": run}.items())), 5.0)


def _kept(
    history: dict[tuple[object, ...], HistoryEvent], episodes: Episodes
) -> list[tuple[str, str, int, int | None]]:
    """Events as the store keeps them: of those with the same kind, start, labels and code the last."""
    for event in episodes.take():
        history[event.kind, event.start_ns, event.labels, event.code] = event
    return [(one.kind.value, one.code, one.start_ns, one.end_ns) for one in history.values()]


def test_a_gap_lasts_from_the_first_failure_to_the_next_page() -> None:
    episodes = Episodes()
    episodes.answered(_N1, 10, ())
    first = episodes.failed(_N1, 20, GapReason.REFUSED, "the agent cannot be reached (Connection refused)")
    assert first is not None
    assert episodes.failed(_N1, 30, GapReason.TIMED_OUT, "no answer") is None
    history: dict[tuple[object, ...], HistoryEvent] = {}
    assert _kept(history, episodes) == [("gap", "refused", 20, None)]
    ended = episodes.answered(_N1, 40, ())
    assert ended is not None
    assert _kept(history, episodes) == [("gap", "refused", 20, 40)]
    assert (ended.labels, ended.text) == (_N1, "the agent cannot be reached (Connection refused)")
    assert episodes.take() == ()


def test_a_gap_that_ends_and_another_that_begins_in_one_batch_are_two() -> None:
    episodes = Episodes()
    for time, is_up in ((1, False), (2, True), (3, False), (4, True)):
        if is_up:
            episodes.answered(_N1, time, ())
        else:
            episodes.failed(_N1, time, GapReason.TLS, "no")
    assert _kept({}, episodes) == [("gap", "tls", 1, 2), ("gap", "tls", 3, 4)]


def test_a_health_event_lasts_while_its_series_is_there_whatever_its_severity() -> None:
    episodes, history = Episodes(), dict[tuple[object, ...], HistoryEvent]()
    episodes.answered(_N1, 10, [_sick(severity="warning")])
    episodes.answered(_N1, 20, [_sick()])
    assert _kept(history, episodes) == [("health", "xid_79", 10, None)]
    (event,) = history.values()
    assert dict(event.labels) == {"gpu": "3", "instance": "n1:9455", "uuid": "GPU-3"}
    assert event.text == "warning: xid_79; take the work off the machine and reboot it"
    episodes.answered(_N1, 30, [])
    assert _kept(history, episodes) == [("health", "xid_79", 10, 30)]


def test_nothing_is_known_of_health_during_a_gap() -> None:
    episodes, history = Episodes(), dict[tuple[object, ...], HistoryEvent]()
    episodes.answered(_N1, 10, [_sick()])
    episodes.failed(_N1, 20, GapReason.TIMED_OUT, "no answer")
    episodes.answered(_N1, 30, [_sick()])
    assert _kept(history, episodes) == [("health", "xid_79", 10, None), ("gap", "timed_out", 20, 30)]


def test_a_target_that_vanishes_ends_without_a_gap() -> None:
    episodes = Episodes()
    episodes.answered(_N1, 10, [_sick(), _verdict(_N1, "data_loading")])
    episodes.failed(_N2, 10, GapReason.REFUSED, "no")
    episodes.vanished(_N1, 20)
    episodes.vanished(_N2, 20)
    assert sorted(_kept({}, episodes)) == [
        ("gap", "refused", 10, 20),
        ("health", "xid_79", 10, 20),
        ("verdict", "data_loading", 10, 20),
    ]


def test_a_verdict_of_many_nodes_is_one_event_that_ends_with_the_last() -> None:
    episodes, history = Episodes(), dict[tuple[object, ...], HistoryEvent]()
    episodes.answered(_N1, 10, [_verdict(_N1, "data_loading")])
    episodes.answered(_N2, 11, [_verdict(_N2, "data_loading")])
    episodes.answered(_N1, 20, [_verdict(_N1, "compute_bound", 0.0)])
    episodes.answered(_N2, 21, [_verdict(_N2, "compute_bound", 0.0)])
    assert _kept(history, episodes) == [("verdict", "data_loading", 10, 21), ("verdict", "compute_bound", 20, None)]
    texts = [event.text for event in history.values()]
    assert texts == ["Data loading: 40.0% of training time", "no bottleneck: Compute-bound"]
    assert {event.labels for event in history.values()} == {(("run", "train"),)}


def test_a_verdict_that_is_unknown_for_a_while_is_no_change() -> None:
    episodes = Episodes()
    episodes.answered(_N1, 10, [_verdict(_N1, "data_loading"), _age(_N1)])
    episodes.answered(_N1, 20, [_age(_N1)])
    assert _kept({}, episodes) == [("verdict", "data_loading", 10, None)]
    episodes.answered(_N1, 30, [])
    assert _kept({}, episodes) == [("verdict", "data_loading", 10, 30)]


def test_a_dead_node_does_not_hold_the_old_verdict_of_a_run_that_goes_on() -> None:
    for order in ((_N1, _N2), (_N2, _N1)):
        episodes = Episodes()
        for target in order:
            episodes.answered(target, 10, [_verdict(target, "data_loading")])
        episodes.failed(_N2, 20, GapReason.TIMED_OUT, "no answer")
        episodes.answered(_N1, 30, [_verdict(_N1, "straggler")])
        kept = [one for one in _kept({}, episodes) if one[0] == "verdict"]
        assert kept == [("verdict", "data_loading", 10, 30), ("verdict", "straggler", 30, None)]


def test_two_runs_of_one_name_do_not_take_turns() -> None:
    episodes = Episodes()
    for time in range(5):
        episodes.answered(_N1, time, [_verdict(_N1, "data_loading")])
        episodes.answered(_N2, time, [_verdict(_N2, "straggler")])
    assert _kept({}, episodes) == [("verdict", "data_loading", 0, None), ("verdict", "straggler", 0, None)]


def test_another_recorder_continues_what_was_open() -> None:
    first, history = Episodes(), dict[tuple[object, ...], HistoryEvent]()
    first.answered(_N1, 10, [_sick(), _sick(code="ecc"), _verdict(_N1, "data_loading")])
    first.failed(_N2, 10, GapReason.REFUSED, "no")
    _kept(history, first)
    second = Episodes(event for event in history.values() if event.end_ns is None)
    second.answered(_N1, 100, [_sick(), _verdict(_N1, "data_loading")])
    second.failed(_N2, 100, GapReason.REFUSED, "no")
    second.settle(120)
    assert sorted(_kept(history, second)) == [
        ("gap", "refused", 10, None),
        ("health", "ecc", 10, 100),
        ("health", "xid_79", 10, None),
        ("verdict", "data_loading", 10, None),
    ]
    second.answered(_N2, 200, ())
    second.answered(_N1, 200, [])
    assert all(end == 200 for *_, code, _, end in _kept(history, second) if code != "ecc")


def test_what_nobody_has_any_more_ends_once_all_were_scraped() -> None:
    gone = HistoryEvent(_GAP, 5, None, (("instance", "gone:9455"),), "refused", "no")
    moved = HistoryEvent(_HEALTH, 5, None, (("gpu", "3"), ("instance", "n1:9455"), ("rack", "old")), "ecc", "text")
    run = HistoryEvent(_VERDICT, 5, None, (("run", "gone"),), "straggler", "text")
    episodes = Episodes([gone, moved, run])
    episodes.answered((*_N1, ("rack", "new")), 10, ())
    episodes.settle(20)
    assert sorted(_kept({}, episodes)) == [
        ("gap", "refused", 5, 20),
        ("health", "ecc", 5, 10),
        ("verdict", "straggler", 5, 20),
    ]
    assert set(episodes.num_open().values()) == {0}


def test_a_clock_that_was_set_back_makes_no_event_that_ends_before_it_begins() -> None:
    episodes = Episodes()
    episodes.failed(_N1, 100, GapReason.REFUSED, "no")
    episodes.answered(_N1, 50, ())
    assert _kept({}, episodes) == [("gap", "refused", 100, 100)]


def test_a_target_has_a_limited_number_of_events() -> None:
    episodes = Episodes()
    episodes.answered(_N1, 1, [_sick(code=f"c{number}") for number in range(1000)])
    episodes.answered(_N1, 1, [_verdict(_N1, f"c{number}") for number in range(1000)])
    assert episodes.num_open() == {_GAP: 0, _HEALTH: 0, _VERDICT: 500}
    assert len(episodes.take()) == 1000
