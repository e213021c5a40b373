"""Capture requests and reports survive encoding, and invalid ones are rejected with a reason."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.protocol.captures import (
    CaptureOrder,
    CaptureProgress,
    CaptureReport,
    CaptureRequest,
    CaptureSelector,
    CaptureState,
    CaptureTarget,
    RankCapture,
    order_document,
    read_order,
    report_document,
    state_of_ranks,
)
from stepscope.core.protocol.fields import FieldError, read_object
from stepscope.core.protocol.messages import ANSWER_STATES, Answer, ProtocolError, decode_message, encode_message

_WHOLE = st.integers(0, 2**63 - 1)
_MAYBE = st.none() | _WHOLE
_WORD = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=20)
_REQUESTS = st.builds(
    CaptureRequest,
    id=_WORD,
    steps=st.integers(1, 1000),
    ranks=st.none() | st.lists(st.integers(0, 1000), min_size=1).map(tuple),
    start_step=_MAYBE,
    start_unix_ns=_MAYBE,
    max_bytes=st.none() | st.integers(1, 2**62),
    max_overhead=st.none() | st.floats(0, 10),
    deadline_unix_ns=_MAYBE,
)
_ORDERS = st.builds(CaptureOrder, _REQUESTS, st.builds(CaptureSelector, run=_WORD, job=st.none() | _WORD))
_TARGETS = st.builds(
    CaptureTarget,
    key=_WORD,
    backend=_WORD,
    rank=st.none() | st.integers(0, 1000),
    world_size=st.none() | st.integers(0, 1000),
    run=st.none() | _WORD,
    run_directory=st.none() | st.text(max_size=30),
    pid=_MAYBE,
    uid=_MAYBE,
    newest_step=_MAYBE,
    step_ms=st.none() | st.floats(0, 1e9),
    job=st.none(),
)
_PROGRESS = st.builds(
    CaptureProgress,
    state=st.sampled_from(CaptureState),
    reason=st.none() | st.text(max_size=30),
    start_step=_MAYBE,
    steps=st.none() | st.integers(0, 1000),
    path=st.none() | st.text(max_size=30),
    bytes=_MAYBE,
    overhead=st.none() | st.floats(-1, 10),
)
_RANKS = st.builds(RankCapture, _TARGETS, _PROGRESS)


@given(st.builds(CaptureReport, _WORD, _WHOLE, _ORDERS, st.lists(_RANKS, max_size=3).map(tuple), st.booleans()))
def test_a_report_reads_back_as_it_was_written(report: CaptureReport) -> None:
    assert read_object(CaptureReport, json.loads(json.dumps(report_document(report)))) == report


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=3), _ORDERS
)
def test_any_other_value_is_read_or_refused(value: object, order: CaptureOrder) -> None:
    document = json.loads(json.dumps(order_document(order)))
    for name in document:
        with suppress(FieldError):
            read_order(document | {name: value})


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ([], "an order is a JSON object"),
        ({"id": "c", "steps": 1}, '"run" or "job" must say what to capture'),
        ({"id": "c", "steps": 1, "run": "r", "out": "/etc"}, 'unknown field "out"'),
        ({"id": "../c", "steps": 1, "run": "r"}, '"id" must be 1 to 64 letters, digits, dots, - or _, and not begin'),
        ({"id": "rule-0", "steps": 1, "run": "r"}, '"id" must be'),
        ({"id": "c", "run": "r"}, '"steps" is missing'),
        ({"id": "c", "steps": 1, "run": "r", "ranks": []}, '"ranks" must be a list of ranks'),
    ],
)
def test_what_is_no_order(document: object, line: str) -> None:
    with pytest.raises(FieldError) as raised:
        read_order(document)
    assert str(raised.value).startswith(line)


@pytest.mark.parametrize("document", [None, {}, {"host": "h", "created_ns": 1, "order": {}, "ranks": [3]}])
def test_what_is_no_report(document: object) -> None:
    with pytest.raises(FieldError):
        read_object(CaptureReport, document)


def test_every_answer_of_a_process_is_a_state_of_one_process() -> None:
    assert set(CaptureState) - set(ANSWER_STATES) == {CaptureState.ASKED, CaptureState.PARTIAL}
    for state in (CaptureState.ASKED, CaptureState.PARTIAL):
        with pytest.raises(ProtocolError, match='answer: "state" must be one of accepted, started'):
            decode_message(encode_message(Answer("a", CaptureProgress(state))))


@pytest.mark.parametrize(
    ("states", "whole"),
    [
        ("done done", "done"),
        ("done failed", "partial"),
        ("done asked", "asked"),
        ("accepted asked", "asked"),
        ("accepted refused", "accepted"),
        ("started asked", "started"),
        ("cancelled refused", "cancelled"),
        ("failed refused", "failed"),
        ("refused refused", "refused"),
    ],
)
def test_the_state_of_all_together(states: str, whole: str) -> None:
    target = CaptureTarget("k", "b")
    ranks = tuple(RankCapture(target, CaptureProgress(CaptureState(state))) for state in states.split())
    assert state_of_ranks(ranks) is CaptureState(whole)
