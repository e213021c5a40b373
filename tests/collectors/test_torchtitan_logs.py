"""torchtitan's structured logs are read, damaged ones too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stepscope.collectors.torchtitan_logs import _lines, _steps, read_torchtitan_steps
from stepscope.core.documents.run_directory import Step

_EPOCH_US = 1_709_500_000_000_000


def _event(step: int | None, name: str, at_ms: float, value: float | None = None, **more: Any) -> dict[str, Any]:
    """A line as torchtitan's JSONL handler writes it, with the fields that matter here."""
    line = {"rank": 0, "source": "training", "time_us": _EPOCH_US + int(at_ms * 1000), "log_type_name": name, **more}
    return line | ({} if step is None else {"step": step}) | ({} if value is None else {"value": value})


def _write(folder: Path, rank: int, lines: list[dict[str, Any]], started: str = "20260101-000000-ABC123") -> Path:
    path = folder / "structured_logs" / f"training.global_rank_{rank}.{started}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


_STEPS = [
    _event(None, "torch_distributed_init_end", 0, 900.0),
    _event(1, "fetching_batch_start", 1000),
    _event(1, "fetching_batch_end", 1005, 5.0),
    _event(1, "fwd_bwd_end", 1030, 20.0),
    _event(1, "metric_value", 1031, 3.5, event_name="loss"),
    _event(2, "fetching_batch_start", 1100),
    _event(2, "fetching_batch_end", 1102, 2.0),
    _event(2, "fetching_batch_end", 1103, 1.0),
    _event(2, "Optimizer_end", 1150, 7.0),
]


def test_a_step_lasts_until_the_next_begins_and_the_last_until_its_last_line(tmp_path: Path) -> None:
    _write(tmp_path, 3, _STEPS)
    (rank,), notices = read_torchtitan_steps(tmp_path)
    assert notices == []
    assert rank.rank == 3
    start_ns = (_EPOCH_US + 1_000_000) * 1000
    assert rank.steps == [
        Step(1, start_ns, start_ns + 100_000_000, 5_000_000, {"fwd_bwd": 20_000_000}, {"loss": 3.5}),
        Step(2, start_ns + 100_000_000, start_ns + 150_000_000, 3_000_000, {"Optimizer": 7_000_000}),
    ]


def test_a_restart_replaces_the_steps_that_it_does_again(tmp_path: Path) -> None:
    _write(tmp_path, 0, [_event(step, "fwd_bwd_start", 100 * step) for step in (1, 2, 3)])
    again = [_event(step, "fwd_bwd_start", 1000 + 100 * step) for step in (2, 3)]
    _write(tmp_path / "structured_logs", 0, [])  # another folder of the same name inside is not looked at
    _write(tmp_path, 0, again, started="20260102-000000-AAAAAA")
    (rank,), _ = read_torchtitan_steps(tmp_path / "structured_logs")
    assert [(step.index, (step.start_ns // 1000 - _EPOCH_US) // 1000) for step in rank.steps] == [
        (1, 100),
        (2, 1200),
        (3, 1300),
    ]


def test_lines_that_are_no_event_are_counted_and_a_cut_last_line_is_not(tmp_path: Path) -> None:
    path = _write(tmp_path, 0, [_event(1, "x_start", 0)])
    path.write_text(path.read_text() + 'nonsense\n[1]\n{"step": 1, "time_us": true}\n{"step": 1, "ti')
    (rank,), (notice,) = read_torchtitan_steps(tmp_path)
    assert len(rank.steps) == 1
    assert notice.message.endswith("3 lines are not events and are left out")


def test_a_folder_without_logs_has_no_ranks(tmp_path: Path) -> None:
    assert read_torchtitan_steps(tmp_path) == ([], [])


_values = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers()))
_fields = st.sampled_from(["step", "time_us", "log_type_name", "value", "event_name"])


@given(st.lists(st.dictionaries(_fields, _values)))
def test_no_line_breaks_it_and_steps_are_in_order(tmp_path_factory: Any, documents: list[dict[str, Any]]) -> None:
    path = _write(tmp_path_factory.mktemp("logs"), 0, documents)
    lines, unreadable = _lines(path)
    steps = _steps(lines)
    assert unreadable <= len(documents)
    assert all(step.start_ns <= step.end_ns for step in steps)
    assert [step.start_ns for step in steps] == sorted(step.start_ns for step in steps)
