from __future__ import annotations

import json
from pathlib import Path

from stepscope.core.run_layout import steps_path
from stepscope.workflow.step_telemetry import read_data_waits

STEP_NS = 1_000_000


def write_steps(
    run: Path, rank: int, waits_ns: list[int], *, captured: frozenset[int] = frozenset(), rest: str = ""
) -> None:
    path = run / steps_path(rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for index, wait in enumerate(waits_ns):
        state = "active" if index in captured else "wait"
        step = {"index": index, "start_ns": index * STEP_NS, "end_ns": (index + 1) * STEP_NS, "data_wait_ns": wait}
        lines.append(json.dumps(step | {"captured": index in captured, "state": state}))
    with path.open("a") as file:
        file.write("\n".join(lines) + "\n" + rest)


def test_settled_steps_tell_how_long_each_waited_for_data(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, [9, 1, 2, 3, 4, 5], captured=frozenset({3}), rest='{"index": 6, "sta')
    write_steps(tmp_path, 1, [0, 0, 0])
    # the first step and the one after a capture are not settled; a rank that never waited tells nothing
    assert read_data_waits(tmp_path) == {0: [1, 2, 5]}


def test_only_the_last_attempt_counts(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, [1, 2, 3])
    write_steps(tmp_path, 0, [4, 5, 6])
    assert read_data_waits(tmp_path) == {0: [5, 6]}


def test_a_run_without_telemetry_tells_nothing(tmp_path: Path) -> None:
    assert read_data_waits(tmp_path) == {}
