"""Calls, their ends and last arrivals agree with a plain reading of an eight-rank gloo trace.

The plain reading pairs the n-th operator on the training loop's thread with the n-th span of the backend on its worker
threads: asked for when the operator starts, done when the span ends. Of some calls its figures are written down.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stepscope.analyzer.collectives.arrivals import needed_arrivals
from stepscope.analyzer.collectives.calls import Call, CallId, match_calls
from stepscope.analyzer.rank import view_rank
from tests.trace.one_rank import read_trace

pytestmark = pytest.mark.shared

STEP = 3
RANKS = (0, 1, 2, 3, 5)
OPERATOR_AND_SPAN = {
    "all_reduce": ("c10d::allreduce_", "gloo:all_reduce"),
    "all_gather": ("c10d::_allgather_base_", "gloo:all_gather"),
    "send": ("c10d::send", "gloo:send"),
    "recv": ("c10d::recv_", "gloo:recv"),
}
TENSOR_PARALLEL = [[2, 64, 64]]
"""Input of its all-reduces; gloo's reduce-scatters run under the same name with other inputs."""


@dataclass(frozen=True)
class Timed:
    """Microseconds after the earliest begin of the step on any of the ranks."""

    asked: float
    done: float


@pytest.fixture(scope="module")
def folder(shared_traces: Path) -> Path:
    return shared_traces / "public" / "cpu3d" / "fsdp_1f1b"


@pytest.fixture(scope="module")
def events(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Events with a duration, by start."""
    found = {}
    for rank in RANKS:
        with gzip.open(folder / f"rank{rank}.json.gz") as stream:
            spans = [event for event in json.load(stream)["traceEvents"] if event.get("ph") == "X"]
        found[rank] = sorted(spans, key=lambda event: float(event["ts"]))
    return found


@pytest.fixture(scope="module")
def calls(folder: Path) -> dict[int, list[Call]]:
    return {rank: view_rank(read_trace(folder / f"rank{rank}.json.gz"), rank).calls for rank in RANKS}


def step_begin(events: list[dict[str, Any]]) -> float:
    return next(float(e["ts"]) for e in events if e["name"] == f"ProfilerStep#{STEP}" and e["cat"] == "user_annotation")


def plain_reading(events: Mapping[int, list[dict[str, Any]]], rank: int, kind: str, number: int) -> Timed:
    operator, span = OPERATOR_AND_SPAN[kind]
    asked = [e for e in events[rank] if e["name"] == operator]
    spans = [e for e in events[rank] if e["name"] == span]
    if kind == "all_reduce":
        spans = [e for e in spans if e["args"]["Input Dims"] == TENSOR_PARALLEL]
    first = next(place for place, e in enumerate(asked) if e["ts"] >= step_begin(events[rank]))
    origin = min(map(step_begin, events.values()))
    done = spans[first + number]
    return Timed(asked[first + number]["ts"] - origin, done["ts"] + done["dur"] - origin)


def our_call(calls: Mapping[int, list[Call]], rank: int, kind: str, number: int) -> tuple[CallId, Call]:
    own = [(CallId(rank, p), c) for p, c in enumerate(calls[rank]) if c.kind == kind and c.step == STEP]
    return own[number]


@pytest.mark.parametrize(
    ("kind", "number", "members", "last", "wait_us", "transfer_us"),
    [
        # rank 3 sleeps 0.2 s a step: its partner waits for it, the transfer itself takes 0.6 ms
        ("all_reduce", 0, (2, 3), 3, {2: 192793.5, 3: 0.0}, {2: 583.6, 3: 589.7}),
        ("all_reduce", 5, (2, 3), 3, {2: 5717.2, 3: 0.0}, {2: 4313.8, 3: 5577.6}),
        ("all_gather", 0, (0, 2), 0, {0: 0.0, 2: 643.6}, {0: 499.5, 2: 445.9}),
        ("all_gather", 3, (0, 2), 2, {0: 4605.4, 2: 0.0}, {0: 376.5, 2: 456.5}),
    ],
)
def test_collectives_agree_with_the_plain_reading(
    events: dict[int, list[dict[str, Any]]],
    calls: dict[int, list[Call]],
    kind: str,
    number: int,
    members: tuple[int, ...],
    last: int,
    wait_us: dict[int, float],
    transfer_us: dict[int, float],
) -> None:
    plain = {rank: plain_reading(events, rank, kind, number) for rank in members}
    arrival = max(timed.asked for timed in plain.values())
    assert plain[last].asked == arrival
    needed = needed_arrivals(calls, match_calls(calls), dict.fromkeys(RANKS, 0))
    for rank, timed in plain.items():
        identity, call = our_call(calls, rank, kind, number)
        found = needed[identity]
        assert (call.group, found.rank) == (members, last)
        wait, transfer = (found.at_ns - call.start_ns) / 1e3, (call.end_ns - found.at_ns) / 1e3
        assert (wait, transfer) == pytest.approx((arrival - timed.asked, timed.done - arrival), abs=1.0)
        assert (wait, transfer) == pytest.approx((wait_us[rank], transfer_us[rank]), abs=1.0)


def test_a_receive_waits_for_its_send(events: dict[int, list[dict[str, Any]]], calls: dict[int, list[Call]]) -> None:
    sent, received = plain_reading(events, 1, "send", 0), plain_reading(events, 5, "recv", 0)
    needed = needed_arrivals(calls, match_calls(calls), dict.fromkeys(RANKS, 0))
    identity, call = our_call(calls, 5, "recv", 0)
    found = needed[identity]
    wait, transfer = (found.at_ns - call.start_ns) / 1e3, (call.end_ns - found.at_ns) / 1e3
    assert found.rank == 1
    assert (wait, transfer) == pytest.approx((sent.asked - received.asked, received.done - sent.asked), abs=1.0)
    assert (wait, transfer) == pytest.approx((583477.5, 2460.6), abs=1.0)
