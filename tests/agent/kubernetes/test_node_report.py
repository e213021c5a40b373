"""Condition and events of a Kubernetes node: right words, no flapping, few writes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.agent.kubernetes.node_report import (
    ConditionStatus,
    EventQueue,
    NodeCondition,
    NodeEvents,
    SettledCondition,
    condition_document,
    condition_of,
    event_line,
    reason_of,
)
from stepscope.core.hardware.health import Health, HealthState, OperatorNote, Severity
from tests.agent.kubernetes.reports import BEGIN, SECOND, event, report

_TRUE, _FALSE, _UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN


def test_the_worst_event_is_named_with_what_to_do() -> None:
    warning = event("xid_63", 1, severity=Severity.WARNING)
    condition = condition_of(report(event(), warning), Severity.CRITICAL, BEGIN)
    assert condition == NodeCondition(
        _TRUE, "GpuLost", "GPU 3 (GPU-3): gpu_lost it is; take the work off the machine and reboot it"
    )
    assert condition_of(report(event(), warning), Severity.WARNING, BEGIN).message.endswith("; and 1 more event")
    known = replace(event(), acknowledged=OperatorNote("eve", "spare ordered", BEGIN))
    assert event_line(known).endswith("reboot it (acknowledged by eve: spare ordered)")


def test_warnings_alone_are_no_problem_of_the_node_unless_it_is_set_so() -> None:
    warning = event("xid_63", severity=Severity.WARNING)
    well = condition_of(report(warning), Severity.CRITICAL, BEGIN)
    assert well == NodeCondition(_FALSE, "GpusHealthy", "4 GPUs without an open critical event")
    assert condition_of(report(warning), Severity.WARNING, BEGIN).status is _TRUE


def test_unknown_is_neither_well_nor_sick() -> None:
    lines = [
        condition_of(report(unknown="it does not answer"), Severity.CRITICAL, BEGIN),
        condition_of(report(machine=Health(HealthState.UNKNOWN, "no driver")), Severity.CRITICAL, BEGIN),
        condition_of(report(has_run=False), Severity.CRITICAL, BEGIN),
        condition_of(report(), Severity.CRITICAL, BEGIN + 61 * SECOND),
    ]
    assert {one.status for one in lines} == {_UNKNOWN}
    assert [one.message for one in lines] == [
        "GPU 0 (GPU-0): it does not answer",
        "no driver",
        "nothing has been checked yet",
        "nothing has been checked for 61 s",
    ]
    sick = condition_of(report(event(), unknown="it does not answer"), Severity.CRITICAL, BEGIN + 999 * SECOND)
    assert sick.status is _TRUE  # a known problem counts more


@pytest.mark.parametrize(
    ("code", "reason"), [("gpu_lost", "GpuLost"), ("xid_79", "Xid79"), ("7_of_9", "Health7Of9"), ("§", "Health")]
)
def test_a_reason_is_one_word_of_camel_case(code: str, reason: str) -> None:
    assert reason_of(code) == reason


@given(st.text(max_size=3000))
def test_no_message_is_too_long_or_of_two_lines(text: str) -> None:
    line = event_line(event(message=text or "x"))
    assert len(line.encode()) <= 1000
    assert "\n" not in line
    assert len(condition_of(report(event(message=text), event()), Severity.CRITICAL, BEGIN).message) <= 1000


def _condition(status: ConditionStatus, message: str = "m") -> NodeCondition:
    return NodeCondition(status, "R", message)


def test_a_problem_must_last_and_so_must_health() -> None:
    settled = SettledCondition(30.0, 300.0)
    settled.start(_FALSE)
    assert settled.observe(_condition(_FALSE), 0.0) == _condition(_FALSE)
    assert settled.observe(_condition(_TRUE), 10.0) == _condition(_FALSE)
    assert settled.observe(_condition(_FALSE), 20.0) == _condition(_FALSE)  # it was one look
    assert settled.observe(_condition(_TRUE), 30.0) == _condition(_FALSE)
    assert settled.observe(_condition(_TRUE), 60.0) == _condition(_TRUE)
    assert settled.observe(_condition(_TRUE, "worse"), 61.0) == _condition(_TRUE, "worse")
    assert settled.observe(_condition(_FALSE), 100.0) == _condition(_TRUE, "worse")
    assert settled.observe(_condition(_FALSE), 399.9) == _condition(_TRUE, "worse")
    assert settled.observe(_condition(_FALSE), 400.0) == _condition(_FALSE)


def test_what_a_node_has_from_before_stays_until_something_else_has_lasted() -> None:
    settled = SettledCondition(30.0, 300.0)
    settled.start(_TRUE)
    assert settled.observe(_condition(_FALSE), 0.0) is None
    assert settled.observe(_condition(_FALSE), 299.0) is None
    assert settled.observe(_condition(_FALSE), 300.0) == _condition(_FALSE)
    first = SettledCondition(30.0, 300.0)
    first.start(None)
    assert first.observe(_condition(_FALSE), 0.0) is None
    assert first.observe(_condition(_FALSE), 30.0) == _condition(_FALSE)


@given(st.lists(st.tuples(st.sampled_from(ConditionStatus), st.floats(0.0, 400.0)), max_size=40))
def test_no_status_is_reported_that_has_not_lasted(steps: list[tuple[ConditionStatus, float]]) -> None:
    settled, now = SettledCondition(30.0, 300.0), 0.0
    settled.start(None)
    since: dict[ConditionStatus, float] = {}
    current: ConditionStatus | None = None
    reported: ConditionStatus | None = None
    for status, seconds in steps:
        now += seconds
        if status is not current:
            current, since[status] = status, now
        told = settled.observe(_condition(status), now)
        if told is not None and told.status is not reported:
            assert told.status is status
            least = 300.0 if status is _FALSE and reported is not None else 30.0
            assert now - since[status] >= least
            reported = told.status


def test_the_time_of_a_change_is_left_as_it_is_where_nothing_has_changed() -> None:
    body = condition_document("GpuSick", _condition(_TRUE), heartbeat_ns=BEGIN, transition_ns=None)
    assert body == {
        "status": {
            "conditions": [
                {"type": "GpuSick", "status": "True", "reason": "R", "message": "m",
                 "lastHeartbeatTime": "2023-11-14T22:13:20Z"}
            ]
        }
    }  # fmt: skip
    body = condition_document("GpuSick", _condition(_TRUE), heartbeat_ns=BEGIN, transition_ns=BEGIN + SECOND)
    assert body["status"]["conditions"][0]["lastTransitionTime"] == "2023-11-14T22:13:21Z"


def test_each_event_comes_once_when_it_begins_and_once_when_it_ends() -> None:
    events = NodeEvents("node-7", boot="boot")
    assert events.observe(report(), now_ns=BEGIN) == []
    lost, note = event(), event("xid_13", severity=Severity.INFO)
    (begun,) = events.observe(report(lost, note), now_ns=BEGIN)
    assert (begun["type"], begun["reason"]) == ("Warning", "GpuLost")
    assert re.fullmatch(r"node-7\.[0-9a-f]{16}", begun["metadata"]["name"])
    assert events.observe(report(lost, note), now_ns=BEGIN) == []
    (ended,) = events.observe(report(), now_ns=BEGIN + SECOND)
    assert (ended["type"], ended["reason"]) == ("Normal", "GpuLostEnded")
    assert ended["message"].startswith("over: GPU 3 (GPU-3): gpu_lost it is")
    assert ended["metadata"]["name"] != begun["metadata"]["name"]


def test_after_a_restart_of_the_agent_an_event_has_the_same_name() -> None:
    def name(boot: str, **fields: object) -> str:
        one = replace(event(), **fields)  # type: ignore[arg-type]
        (document,) = NodeEvents("node-7", boot=boot).observe(report(one), now_ns=BEGIN)
        return str(document["metadata"]["name"])

    assert name("a", id="e1") == name("b", id="e1", first_ns=7)
    assert name("a", since_start=True, first_ns=1) == name("a", since_start=True, first_ns=2)
    assert name("a", since_start=True) != name("b", since_start=True)
    assert name("a", first_ns=1) != name("a", first_ns=2)


@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0.0, 200.0)), max_size=30))
def test_no_more_events_are_sent_than_are_allowed_and_the_newest_are_kept(steps: list[tuple[int, float]]) -> None:
    queue, now, sent, added = EventQueue(max_waiting=16, burst=5, seconds_each=60.0), 0.0, [], 0
    begin = None
    for num_new, seconds in steps:
        now += seconds
        queue.add({"number": added + n} for n in range(num_new))
        added += num_new
        while (one := queue.next(now)) is not None:
            begin = now if begin is None else begin
            sent.append(one["number"])
            queue.done()
        assert len(queue) <= 16
    assert sent == sorted(sent)
    assert len(sent) + len(queue) + queue.num_dropped == added
    assert len(sent) <= 5 + (now / 60.0) + 1
