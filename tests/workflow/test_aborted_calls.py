"""NCCL marks aborted calls as completed: the culprit is found from dumps as torch writes them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from stepscope.analyzer.hang import explain_hang
from stepscope.collectors.flight_recorder import read_flight_dump
from stepscope.core.documents.hang import FlightDump, HangKind, HangVerdict

_TIMEOUT_MS = 15_000
_BEGIN_NS, _SECOND_NS, _MS_NS = 10**18, 10**9, 10**6


def _call(second: int, number: int, took_ms: int | None = 5, *, made: int = 0) -> dict[str, Any]:
    """A collective of the group's first or later making; one that is open took None."""
    created = _BEGIN_NS + second * _SECOND_NS
    return {
        "record_id": second,
        "pg_id": made,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": created,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None if took_ms is None else created + took_ms * _MS_NS,
        "state": "scheduled" if took_ms is None else "completed",
        "retired": took_ms is not None,
        "timeout_ms": _TIMEOUT_MS,
        "is_p2p": False,
        "input_sizes": [(4,)],
        "output_sizes": [(4,)],
        "input_dtypes": ["Float"],
        "frames": [],
    }


def _dump(rank: int, calls: Sequence[dict[str, Any]]) -> FlightDump:
    group = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    told = {"version": "2.10", "pg_config": group, "pg_status": {}, "entries": list(calls)}
    return read_flight_dump(pickle.dumps(told), rank=rank, where="here")


def _verdict(*calls: Sequence[dict[str, Any]]) -> HangVerdict:
    return explain_hang([_dump(rank, of_rank) for rank, of_rank in enumerate(calls)]).verdict


_STEPS = [_call(second, 1 + second) for second in range(8)]


def test_one_abort_ends_all_calls_that_wait_behind() -> None:
    waiting = [*_STEPS, _call(8, 9, 15_400), _call(9, 10, 14_400)]
    verdict = _verdict(_STEPS, waiting, waiting)
    assert (verdict.kind, verdict.ranks) == (HangKind.HOST, [0])


def test_a_group_made_anew_after_an_abort_counts_for_itself() -> None:
    again = [*_STEPS, _call(8, 9, 15_400), _call(24, 1, made=3)]
    assert not _verdict(again, again, again).ranks
    waiting = [*again, _call(25, 2, None, made=3)]
    verdict = _verdict(again, waiting, waiting)
    assert (verdict.kind, verdict.ranks) == (HangKind.HOST, [0])


def test_a_call_that_all_made_and_that_lasted_long_is_no_hang() -> None:
    """A slow one, with no watchdog to abort it."""
    slow = [*_STEPS, _call(8, 9, 15_400), _call(24, 10)]
    assert not _verdict(slow, slow, slow).ranks
