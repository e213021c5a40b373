"""Ranks that never ended their step are listed, with the operation they were in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.documents.run_directory import Attempt, RunManifest
from stepscope.store.step_records import stuck_steps


def _leave(run: Path, rank: int, where: str = "all_reduce", **other: Any) -> None:
    (run / "flight").mkdir(exist_ok=True)
    state = {"rank": rank, "step": 412, "began_ns": 1000, "where": where, "is_still": True, "ended_ns": None}
    (run / "flight" / f"rank{rank}.stuck.json").write_text(json.dumps(state | other))


def _manifest(start_ns: int = 900, ended: str | None = None) -> RunManifest:
    attempts = [Attempt(1, 2, "exception", 4), Attempt(start_ns, None if ended is None else 2000, ended, 4)]
    return RunManifest("r", "h", 4, {}, 2, {}, {}, attempts)


def test_ranks_are_grouped_by_what_they_were_in(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        _leave(tmp_path, rank)
    _leave(tmp_path, 2, "the wait for data")
    _leave(tmp_path, 10, "train (a.py:3)", is_still=False)
    for manifest in (None, _manifest(), _manifest(ended="signal")):
        assert [notice.message.partition(";")[0] for notice in stuck_steps(tmp_path, manifest)] == [
            "ranks 0–1, 3 stuck in step 412, in all_reduce",
            "rank 10 at work while others were stuck in step 412, in train (a.py:3)",
            "rank 2 stuck in step 412, in the wait for data",
        ]


@pytest.mark.parametrize(
    ("manifest", "other"),
    [
        (_manifest(ended="finished"), {}),
        (_manifest(start_ns=1001), {}),
        (_manifest(), {"ended_ns": 1500}),
        (_manifest(), {"step": -1}),
        (_manifest(), {"is_still": 3}),
    ],
)
def test_a_step_that_went_on_or_was_another_attempts_or_makes_no_sense_is_not_told(
    tmp_path: Path, manifest: RunManifest, other: dict[str, Any]
) -> None:
    _leave(tmp_path, 0, **other)
    (tmp_path / "flight" / "rank1.stuck.json").write_bytes(b"\xff{half")
    assert stuck_steps(tmp_path, manifest) == []


def test_no_control_character_reaches_a_terminal(tmp_path: Path) -> None:
    _leave(tmp_path, 0, "\x1b[31m" + "x" * 500)
    (notice,) = stuck_steps(tmp_path, None)
    assert "\x1b" not in notice.message
    assert len(notice.message) < 200
