from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepscope.core.documents.run_directory import RankFile
from stepscope.store.step_records import ranks_without_steps, read_pace, read_step_telemetry

STEP_NS = 1_000_000


def write_steps(
    run: Path, rank: int, waits_ns: list[int], *, captured: frozenset[int] = frozenset(), rest: str = ""
) -> None:
    path = run / RankFile.STEPS.path(rank)
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
    assert read_pace(tmp_path).data_waits_ns == {0: [1, 2, 5]}


def test_only_the_last_attempt_counts(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, [1, 2, 3])
    write_steps(tmp_path, 0, [4, 5, 6])
    assert read_pace(tmp_path).data_waits_ns == {0: [5, 6]}


def test_the_first_step_of_an_attempt_that_numbers_on_is_not_settled(tmp_path: Path) -> None:
    path = tmp_path / RankFile.STEPS.path(0)
    path.parent.mkdir()
    attempts = [1, 1, 1, 2, 2, 2]
    path.write_text(
        "".join(
            f'{{"index":{index},"start_ns":0,"end_ns":{index}000000,"data_wait_ns":{index},"attempt":{attempt}}}\n'
            for index, attempt in enumerate(attempts, start=1)
        )
    )
    assert read_step_telemetry(tmp_path).step_ms == [2.0, 3.0, 5.0, 6.0]
    assert read_pace(tmp_path).data_waits_ns == {0: [5, 6]}


def test_steps_of_a_gpu_take_their_time_by_its_events_not_by_a_host_that_runs_ahead(tmp_path: Path) -> None:
    path = tmp_path / RankFile.STEPS.path(0)
    path.parent.mkdir()
    ends = [1, 2, 3, 4, 100, 200]  # the launch queue is full from the fifth step on
    lines = [{"index": at, "start_ns": 0, "end_ns": end * STEP_NS} for at, end in enumerate(ends)]
    on_device = [line | ({"device_ns": 50 * STEP_NS} if at not in (0, 3) else {}) for at, line in enumerate(lines)]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in on_device))
    assert read_step_telemetry(tmp_path).step_ms == [50.0] * 4, "a step without events is left out"
    few = [line | ({"device_ns": 50 * STEP_NS} if at == 3 else {}) for at, line in enumerate(lines)]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in few))
    assert read_step_telemetry(tmp_path).step_ms == [2.0, 3.0, 4.0, 100.0, 200.0], "of few events nothing is known"


def test_a_rank_killed_before_its_first_line_is_told_and_hides_no_other(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, [9, 1, 2])
    (tmp_path / RankFile.STEPS.path(1)).touch()
    assert ranks_without_steps(tmp_path) == [1]
    assert ranks_without_steps(tmp_path, world_size=4) == [1, 2, 3]
    assert ranks_without_steps(tmp_path, world_size=2**40) == [1], "a damaged world size"
    assert read_pace(tmp_path).data_waits_ns == {0: [1, 2]}
    assert read_step_telemetry(tmp_path).step_ms == [1.0, 1.0]


def test_ranks_are_silent_only_beside_others_that_are_not(tmp_path: Path) -> None:
    assert ranks_without_steps(tmp_path) == []
    (tmp_path / RankFile.STEPS.path(0)).parent.mkdir()
    (tmp_path / RankFile.STEPS.path(0)).touch()
    assert ranks_without_steps(tmp_path) == [], "all have only just begun"


def test_a_run_without_telemetry_tells_nothing(tmp_path: Path) -> None:
    assert read_pace(tmp_path).data_waits_ns == {}


@pytest.mark.parametrize(
    "line",
    [
        '{"index": 3, "x": ' + "[" * 2000 + "]" * 2000 + "}",
        '{"index": 3, "start_ns": -5, "end_ns": 4000000}',
        '{"index": 3, "start_ns": 0, "end_ns": 9223372036854775808}',
        '{"index": 3, "start_ns": 0, "end_ns": ' + "9" * 400 + "}",
        '{"index": 1' + "0" * 30 + ', "start_ns": 0, "end_ns": 4000000}',
        '{"index": 3, "start_ns": 0, "end_ns": 4000000, "attempt": 1' + "0" * 30 + "}",
    ],
)
def test_a_line_that_no_run_writes_is_passed_over(tmp_path: Path, line: str) -> None:
    write_steps(tmp_path, 0, [9, 1, 2], rest=line + "\n")
    assert read_pace(tmp_path).data_waits_ns == {0: [1, 2]}
    assert read_step_telemetry(tmp_path).step_ms == [1.0, 1.0]


def test_a_figure_of_more_than_forty_digits_is_none(tmp_path: Path) -> None:
    more = '{"index": 3, "start_ns": 3000000, "end_ns": 4000000, "memory_bytes": 1e300, "tokens": 1e41}\n'
    write_steps(tmp_path, 0, [9, 1, 2], rest=more)
    found = read_step_telemetry(tmp_path)
    assert (found.step_ms, found.tokens, found.memory_bytes) == ([1.0, 1.0, 1.0], None, {})


def _write_paced(run: Path, rank: int, *attempts: list[int]) -> None:
    """Steps of so many milliseconds; negative ones are captured."""
    path = run / RankFile.STEPS.path(rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    index = 0
    for attempt, lengths in enumerate(attempts, start=1):
        for length in lengths:
            is_captured = length < 0
            state = "active" if is_captured else "wait"
            step = {"index": index, "start_ns": 0, "end_ns": abs(length) * STEP_NS, "captured": is_captured}
            lines.append(json.dumps(step | {"state": state, "attempt": attempt}))
            index += 1
    path.write_text("\n".join(lines) + "\n")


_CAPTURED = [-90, -90, -90]


@pytest.mark.parametrize(
    ("attempts", "capture", "told"),
    [
        # an early capture has the first steps before it, which start up, and after it those while its trace is written
        ([[20] * 4 + _CAPTURED + [99] + [13] * 30 + [10] * 66 + [40] * 500], (1, 4), 10.0),
        ([[10] * 50 + _CAPTURED + [40] * 100], (1, 50), 10.0),  # it has become slower since
        ([[10] * 50 + [30] * 11 + _CAPTURED], (1, 61), 30.0),  # captured because it had become slow
        ([[30] * 300, [10] * 11 + _CAPTURED + [10] * 9], (2, 311), 10.0),
        ([[30] * 40 + _CAPTURED + [30] * 40, [10] * 40 + _CAPTURED + [10] * 40], (2, 123), 10.0),
        ([[30] * 40 + _CAPTURED + [30] * 40 + [10] * 40 + _CAPTURED], (1, 123), 10.0),
        ([[10] * 4 + _CAPTURED + [10] * 5], (1, 4), None),  # too few
        ([[10] * 100], (1, 50), None),  # it tells of no capture
        ([[10] * 50 + _CAPTURED], (2, 50), None),
    ],
)
def test_the_steps_next_to_a_capture_tell_its_step_without_the_profiler(
    tmp_path: Path, attempts: list[list[int]], capture: tuple[int, int], told: float | None
) -> None:
    _write_paced(tmp_path, 0, *attempts)
    assert read_pace(tmp_path, capture).unprofiled_step_ms == told


@pytest.mark.parametrize(
    ("before", "is_even"),
    [
        ([10] * 10, True),
        ([10] * 9 + [60_000], True),  # one checkpoint
        ([10, 10, 40] * 4, False),
        ([180, 1100] * 6, False),
        ([10, 40] * 3, True),  # too few to tell
    ],
)
def test_steps_that_differ_tell_nothing_of_captured_ones(tmp_path: Path, before: list[int], is_even: bool) -> None:
    _write_paced(tmp_path, 0, [500, *before, *_CAPTURED])
    assert read_pace(tmp_path, (1, len(before) + 1)).is_even is is_even


def test_without_a_capture_nothing_is_told_of_one(tmp_path: Path) -> None:
    _write_paced(tmp_path, 0, [10] * 50 + _CAPTURED)
    assert read_pace(tmp_path).unprofiled_step_ms is None


def test_all_captured_ranks_together_tell_it(tmp_path: Path) -> None:
    for rank, length in enumerate((10, 12, 30)):
        _write_paced(tmp_path, rank, [length] * 20 + _CAPTURED + [length] * 20)
    _write_paced(tmp_path, 3, [50] * 43)  # was not captured
    (tmp_path / RankFile.STEPS.path(4)).touch()  # has no step yet
    assert read_pace(tmp_path, (1, 20)).unprofiled_step_ms == 12.0
